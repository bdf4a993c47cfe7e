"""Calibrate SparseMM's visual-head scores: which heads look at a word in the picture while writing it.

The model reads pictures whose words have known places. It answers greedily, uncompressed; whenever a
generated token belongs to the text of exactly one box, every query head whose most-attended position lies
on that box's visual tokens gains 1 / |tokens of the box|. A head's score is the average over pictures.

>>> calibrate_heads(adapter, [Reading(image, "Read the text.", [("Total", [3, 4]), ("12.50", [9])])],
"heads.json")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvbench.engine.cache import CompactCache
from kvbench.engine.prefill import Prefill, prefill
from kvbench.errors import UserError
from kvbench.store.files import write_atomic


@dataclass
class Reading:
    """One picture to read aloud, and where its words stand."""

    image: Any  # PIL image, or a list of them
    question: str
    boxes: list[tuple[str, list[int]]]  # (text, indices among the prompt's visual tokens, in order)
    max_new_tokens: int = 64


@dataclass
class _Watch:
    """A full cache that notes, in every layer, the position that each query head attends most."""

    cache: CompactCache
    peaks: list[Tensor] = field(default_factory=list)  # per layer [query_heads]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        out = self.cache.attend(layer, query, key, value, scaling)
        keys = self.cache.stored_keys(layer)  # [H, entries, d] with the new token, one branch
        self.peaks.append(_peaks(query[0, :, -1], keys))
        return out


def _peaks(query: Tensor, keys: Tensor) -> Tensor:
    """[H*G] most-attended entry of each query head: query [H*G, d], keys [H, entries, d]."""
    heads, _, dim = keys.shape
    return (query.view(heads, -1, dim) @ keys.transpose(1, 2)).flatten(0, 1).argmax(-1)


@torch.inference_mode()
def watch(adapter, inputs, max_new_tokens: int) -> tuple[list[int], list[Tensor]]:
    """Greedy tokens, and for each the [layers, query_heads] prompt position its query attended most."""
    prompt = prefill(adapter, inputs, window=1)
    tokens = [int(prompt.logits.argmax())]
    peaks = [_prompt_peaks(prompt)]
    cache = CompactCache(prompt, [None], room=max_new_tokens)
    while len(tokens) < max_new_tokens and tokens[-1] not in adapter.stop_ids:
        state = _Watch(cache)
        latest = torch.tensor(tokens[-1:], device=adapter.device)
        logits = adapter.step(latest, inputs.next_position + len(tokens) - 1, state)
        cache.advance()
        tokens.append(int(logits[0].argmax()))
        peaks.append(torch.stack(state.peaks).cpu())
    return tokens, peaks


def _prompt_peaks(prompt: Prefill) -> Tensor:
    """[layers, query_heads]: what the last prompt query, which writes the first token, attended most."""
    pairs = zip(prompt.window_queries, prompt.keys, strict=True)
    return torch.stack([_peaks(queries[:, -1], keys) for queries, keys in pairs]).cpu()


def score_reading(adapter, reading: Reading) -> Tensor:
    """[layers, query_heads] fp32 gains of one picture."""
    images = reading.image if isinstance(reading.image, list) else [reading.image]
    inputs = adapter.prepare(reading.question, images)
    visual = inputs.visual_mask.nonzero().flatten().tolist()
    pieces = [(_pieces(adapter, text), {visual[i] for i in places}) for text, places in reading.boxes]
    scores = torch.zeros(adapter.layers, adapter.query_heads)
    tokens, peaks = watch(adapter, inputs, reading.max_new_tokens)
    for token, attended in zip(tokens, peaks, strict=True):
        piece = adapter.text([token]).strip()
        boxes = [places for texts, places in pieces if piece in texts] if piece else []
        if len(boxes) != 1 or not boxes[0]:
            continue  # a token of no box, or of several, says nothing about where to look
        on_box = torch.isin(attended, torch.tensor(sorted(boxes[0])))
        scores += on_box.float() / len(boxes[0])
    return scores


def _pieces(adapter, text: str) -> set[str]:
    """The stripped texts of the tokens that a word can be written with, with or without a space before it."""
    found = set()
    for spelled in (text, f" {text}"):
        ids = adapter.tokenizer.encode(spelled, add_special_tokens=False)
        found |= {adapter.text([i]).strip() for i in ids}
    return found - {"", "\ufffd"}  # part of a character is no text


def calibrate_heads(
    adapter,
    readings: Iterable[Reading],
    path: str | Path,
    *,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Write {"layer-head": [score per picture]} for all readings; a broken-off run goes on where it stopped.

    Beside `path` grows `path.partial` until all pictures are read. Raises UserError when no picture was
    given, when the partial file belongs to another model, or when no head ever looked at a word it wrote.
    """
    path = Path(path).expanduser()
    partial = path.with_name(path.name + ".partial")
    names = [f"{layer}-{head}" for layer in range(adapter.layers) for head in range(adapter.query_heads)]
    done = _resume(partial, adapter.name, names)
    count = len(done[names[0]])
    total = 0
    for index, reading in enumerate(readings):
        total = index + 1
        if index < count:
            continue
        gains = score_reading(adapter, reading).flatten().tolist()
        for name, gain in zip(names, gains, strict=True):
            done[name].append(round(gain, 7))
        write_atomic(partial, json.dumps({"model": adapter.name, "scores": done}))
        if progress is not None:
            progress(total)
    if total == 0:
        raise UserError("there are no pictures to calibrate on: give at least one with word boxes.")
    done = {name: scores[:total] for name, scores in done.items()}
    if not any(map(any, done.values())):
        raise UserError(
            f"no head of {adapter.name} looked at a word it wrote on {total} pictures: use more "
            f"pictures, or check that the model can read them."
        )
    write_atomic(path, json.dumps(done))
    partial.unlink(missing_ok=True)
    return path


def _resume(partial: Path, model: str, names: list[str]) -> dict[str, list[float]]:
    if not partial.exists():
        return {name: [] for name in names}
    try:
        saved = json.loads(partial.read_text())
        scores = saved["scores"]
        matches = (
            saved["model"] == model and list(scores) == names and len({len(s) for s in scores.values()}) == 1
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{partial} is not a calibration in progress ({error}): remove it.") from error
    if not matches:
        raise UserError(f"{partial} belongs to another model: remove it or write to another file.")
    return scores
