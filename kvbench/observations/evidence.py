"""Where a prompt's last queries look, and whether the answer stands there (BACON section 3, figures 2 and 3).

L layers, H KV heads, N prompt tokens, T visual tokens ("tiles"). *Evidence* is the tiles of the label and of
the value that a question asks about, known from the page's generator; *strong* tiles are those that a layer's
last query attends most.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvbench.methods.observation import Observation
from kvbench.methods.select import top_mask

STRONG = 16  # tiles a layer
RADIUS = 5  # of BACON's neighbourhood (eq. 5)
QUERIES = 32  # last queries that are told apart


def share(probabilities: Tensor, where: Tensor) -> float:
    """Percent of the attention that falls on positions, mean over layers and heads."""
    return 100 * float(probabilities[..., where].sum(-1).mean())


def recall(scores: Tensor, evidence: Tensor, size: int) -> float:
    """Share of the evidence among each head's ``size`` highest scores [L, H, M], mean over heads."""
    chosen = top_mask(scores, torch.full(scores.shape[:2], min(size, scores.shape[-1])))
    return float(chosen[..., evidence].float().mean())


def by_head(probabilities: Tensor, heads: int) -> Tensor:
    """[..., H*G, X] -> [..., H, X]: mean over the query heads that share a KV head."""
    return probabilities.unflatten(-2, (heads, -1)).mean(-2)


def structure(scores: Tensor, marked: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Coherence and persistence of the strong tiles; scores [L, T], marked bool [T] evidence.

    Coherence: share of the tiles within RADIUS of a strong one that are strong too. Persistence: share of the
    strong tiles that are strong in the next layer. By name, for evidence and for noise: values [L', T], and
    bool [L', T] for which of them they are meant (L' = L - 1 for persistence).
    """
    layers, count = scores.shape
    strong = top_mask(scores[:, None], torch.full((layers, 1), min(STRONG, count)))[:, 0]
    places = torch.arange(count, device=scores.device)
    distance = (places[:, None] - places).abs()
    near = ((distance > 0) & (distance <= RADIUS)).to(scores)
    coherence = strong.to(scores) @ near / near.sum(0)
    found = {}
    for name, kind in (("evidence", marked), ("noise", ~marked)):
        these = strong & kind
        found[f"coherence_{name}"] = coherence, these
        found[f"persistence_{name}"] = strong[1:].float(), these[:-1]
    return found


def by_layer(values: Tensor, these: Tensor) -> list[float | None]:
    """Mean of each layer's values [L, T] where ``these`` are set; None for a layer without any."""
    pairs = zip(values, these, strict=True)
    return [float(row[mine].mean()) if bool(mine.any()) else None for row, mine in pairs]


def looks(observation: Observation, tiles: Tensor, evidence: Tensor, window: int) -> dict[str, list]:
    """What the queries of the text after the picture see of the evidence.

    tiles, evidence: positions in the prompt, all before the first of these queries. By query, the last one
    last (QUERIES at most): ``attended``, percent of the attention on evidence, and ``captured``, share of the
    evidence among as many tiles as there is evidence, those the query attends most; means over layers and
    heads. By layer: ``captured_last`` and ``captured_window``, the same share for the last query and for the
    mean of the text's last ``window`` queries, and coherence and persistence as in ``structure``.
    """
    layers, heads, length = observation.shape
    queries = min(QUERIES, length - int(tiles[-1]) - 1)
    marked = torch.isin(tiles, evidence)
    size = int(marked.sum())
    attended = torch.zeros(queries)
    captured = torch.zeros(layers, queries)
    of_mean, last = torch.zeros(layers), torch.zeros(layers, len(tiles))
    for layer in range(layers):
        rows = observation.rows(layer, queries)  # [H*G, queries, N]
        attended += 100 * rows[..., evidence].sum(-1).mean(0).cpu() / layers
        on_tiles = by_head(rows[..., tiles].transpose(0, 1), heads).cpu()  # [queries, H, T]
        captured[layer] = _captured(on_tiles, marked, size)
        of_mean[layer] = _captured(on_tiles[-window:].mean(0, keepdim=True), marked, size)[0]
        last[layer] = on_tiles[-1].mean(0)
    found = {name: by_layer(*pair) for name, pair in structure(last, marked.cpu()).items()}
    return found | {
        "attended": attended.tolist(),
        "captured": captured.mean(0).tolist(),
        "captured_last": captured[:, -1].tolist(),
        "captured_window": of_mean.tolist(),
    }


def _captured(scores: Tensor, marked: Tensor, size: int) -> Tensor:
    """[Q] share of the marked tiles among each query's ``size`` highest scores [Q, H, T], mean over heads."""
    chosen = top_mask(scores, torch.full(scores.shape[:2], size))
    return chosen[..., marked.cpu()].float().mean((1, 2))
