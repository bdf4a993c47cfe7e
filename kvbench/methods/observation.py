"""What the prompt shows to the methods: window attention and key statistics, computed once per sample.

All tensors are stacked over layers and KV heads: L layers, H KV heads, G query heads per KV head, N prompt
tokens, d head dimension, M = N - window candidates. Every statistic is fp32, whatever the model's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Observation:
    """One prompt's cache and window queries, with a memo that lives and dies with the sample."""

    keys: Tensor  # [L, H, N, d] post-RoPE
    values: Tensor  # [L, H, N, d]
    window_queries: Tensor  # [L, H*G, w, d] post-RoPE, the last w prompt positions
    visual_mask: Tensor | None = None  # bool [N]
    attention_sums: Tensor | None = None  # [L, H*G, N]
    head_scores: Tensor | None = None  # [L, H*G]
    mixkv_weight: Tensor | None = None  # [L, H]
    scaling: Sequence[float] | None = None  # per layer, of the attention's logits; None: d ** -0.5
    _memo: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(L, H, N)"""
        return tuple(self.keys.shape[:3])

    def memo(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Compute once per sample."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def query_mean(self, window: int) -> Tensor:
        """[L, H*G, N - window] attention of the last `window` queries, averaged over them, per query head."""
        return self.memo(("query mean", window), lambda: self._attend(window))

    def _attend(self, window: int) -> Tensor:
        layers, _, length, _ = self.keys.shape
        query_heads = self.window_queries.shape[1]
        means = torch.empty(layers, query_heads, length - window, device=self.keys.device)
        for layer in range(layers):  # one layer at a time bounds the [queries, N] logits of long prompts
            means[layer] = self.rows(layer, window)[:, :, : length - window].mean(1)
        return means

    def rows(self, layer: int, window: int) -> Tensor:
        """[H*G, window, N] causal attention of one layer's last `window` queries. Not remembered."""
        _, heads, length, dim = self.keys.shape
        query = self.window_queries[layer, :, -window:].float().reshape(heads, -1, dim)
        scaling = dim**-0.5 if self.scaling is None else self.scaling[layer]
        logits = query @ self.keys[layer].float().transpose(1, 2) * scaling
        logits = logits.view(-1, window, length)
        causal = torch.ones(window, window, dtype=torch.bool, device=logits.device).triu(1)
        logits[:, :, length - window :].masked_fill_(causal, float("-inf"))
        return logits.softmax(-1)

    def view(self, window: int, reduce: str = "mean", pool: str = "avg", kernel: int = 5) -> View:
        """The observation as one method sees it: its window and how it reduces and pools attention."""
        key = ("view", window, reduce, pool, kernel)
        return self.memo(key, lambda: View(self, window, reduce, pool, kernel))


@dataclass
class View:
    """An observation through one window size and one way to reduce query heads and pool positions."""

    observation: Observation
    window: int
    reduce: str
    pool: str
    kernel: int

    @property
    def length(self) -> int:
        """N"""
        return self.observation.keys.shape[2]

    @property
    def candidates(self) -> int:
        """M = N - window: only these positions compete; the window is always kept."""
        return self.length - self.window

    def _memo(self, name: str, make: Callable[[], Tensor], *extra: Hashable) -> Tensor:
        return self.observation.memo((name, self.window, *extra), make)

    def reduced(self, per_query_head: Tensor) -> Tensor:
        """[L, H*G, X] -> [L, H, X]: mean or max over the query heads that share a KV head."""
        layers, heads, _ = self.observation.shape
        grouped = per_query_head.float().view(layers, heads, -1, per_query_head.shape[-1])
        return grouped.mean(2) if self.reduce == "mean" else grouped.amax(2)

    def pooled(self, scores: Tensor) -> Tensor:
        """Pool [L, H, M] along positions, stride 1; average pooling counts its zero padding."""
        if self.pool == "none" or self.kernel == 1:
            return scores
        function = F.avg_pool1d if self.pool == "avg" else F.max_pool1d
        return function(scores, self.kernel, stride=1, padding=self.kernel // 2)

    @property
    def b(self) -> Tensor:
        """[L, H, M] window attention, reduced over the group and pooled: the base score of SnapKV."""
        how = (self.reduce, self.pool, self.kernel)
        make = lambda: self.pooled(self.reduced(self.observation.query_mean(self.window)))  # noqa: E731
        return self._memo("b", make, *how)

    @property
    def b_ranked(self) -> Tensor:
        """[L, H, M] b of each head from high to low"""
        how = (self.reduce, self.pool, self.kernel)
        return self._memo("b ranked", lambda: self.b.sort(-1, descending=True).values, *how)

    @property
    def last_query(self) -> Tensor:
        """[L, H, M] attention of the last prompt query, reduced and pooled as b."""
        how = (self.reduce, self.pool, self.kernel)
        make = lambda: self.pooled(self.reduced(self.last_attention))  # noqa: E731
        return self._memo("last query", make, *how)

    @property
    def last_attention(self) -> Tensor:
        """[L, H*G, M] raw attention of the last prompt query to the candidates."""
        return self.observation.query_mean(1)[..., : self.candidates]

    @property
    def keys(self) -> Tensor:
        """[L, H, N, d] fp32"""
        return self.observation.memo("keys", lambda: self.observation.keys.float())

    @property
    def unit_keys(self) -> Tensor:
        """[L, H, N, d] keys of length one"""
        return self.observation.memo("unit keys", lambda: F.normalize(self.keys, dim=-1))

    @property
    def mean_unit_key(self) -> Tensor:
        """[L, H, d] mean of the unit keys over the whole prompt"""
        return self.observation.memo("mean unit key", lambda: self.unit_keys.mean(2))

    @property
    def cosines(self) -> Tensor:
        """[L, H, M] k_hat . mu: each candidate's mean cosine to all N keys, itself included"""
        dots = self.observation.memo(
            "cosines", lambda: (self.unit_keys @ self.mean_unit_key.unsqueeze(-1)).squeeze(-1)
        )
        return dots[..., : self.candidates]

    @property
    def redundancy(self) -> Tensor:
        """[L, H] mean off-diagonal cosine of the keys: (N |mu|^2 - 1) / (N - 1)"""
        n = self.length
        make = lambda: (n * self.mean_unit_key.square().sum(-1) - 1) / (n - 1)  # noqa: E731
        return self.observation.memo("redundancy", make)

    def centroid_distances(self, over: str = "all") -> Tensor:
        """[L, H, M] Euclidean distance of each candidate key to the mean key over all N or the candidates."""

        def make() -> Tensor:
            keys = self.keys if over == "all" else self.keys[:, :, : self.candidates]
            return (self.keys[:, :, : self.candidates] - keys.mean(2, keepdim=True)).norm(dim=-1)

        return self._memo("centroid distance", make, over)

    @property
    def value_norms(self) -> Tensor:
        """[L, H, M]"""
        norms = self.observation.memo("value norms", lambda: self.observation.values.float().norm(dim=-1))
        return norms[..., : self.candidates]

    @property
    def importance(self) -> Tensor:
        """[L, H, M] MixKV's importance: b plus value norms, min-max'd per head and scaled to b's mean."""
        how = (self.reduce, self.pool, self.kernel)
        make = lambda: self.b + scaled_to(min_max(self.value_norms), self.b)  # noqa: E731
        return self._memo("importance", make, *how)

    def scale(self, name: str) -> Tensor:
        """[L, H, M] what diversity is scaled to the mean of: ``base`` (b) or ``importance``."""
        return self.b if name == "base" else self.importance


def min_max(scores: Tensor, epsilon: float = 0.0) -> Tensor:
    """Map each head's scores to [0, 1]; a constant head becomes zeros."""
    low = scores.amin(-1, keepdim=True)
    spread = scores.amax(-1, keepdim=True) - low + epsilon
    return (scores - low) / spread.where(spread > 0, torch.ones_like(spread))


def scaled_to(scores: Tensor, target: Tensor) -> Tensor:
    """Scale each head's scores so that their mean equals the target's mean; an all-zero head stays zero."""
    mean = scores.mean(-1, keepdim=True)
    return scores * (target.mean(-1, keepdim=True) / mean.where(mean != 0, torch.ones_like(mean)))
