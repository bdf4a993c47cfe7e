"""One layer at one decode step as a refresh policy sees it: logits, attention, drift and the top entries.

Shapes: B branches of a group, H KV heads, G query heads per KV head, c selected entries, P the prompt
without the window, N_p its length, d the head dimension.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kvbench.engine.prefix import Prefix


class Step:
    """What a policy sees of one layer at one decode step, for the branches of a group."""

    def __init__(
        self,
        prefix: Prefix,
        layer: int,
        count: int,
        query: Tensor,
        held: Tensor,
        positions: Tensor | None,
        selected: int,
        scaling: float,
        guess: Tensor | None = None,
    ):
        self.prefix, self.layer, self.scaling = prefix, layer, scaling
        self.count = count  # N_p
        self.query = query  # [B, H, G, d] the current step's, post-RoPE
        self.held = (
            held  # [B, H, entries, d] keys in the cache: selected (when positions are given), then the rest
        )
        self.positions = positions  # [B, H, c] ascending, what the selected slots hold; None: no such slots
        self.selected = selected  # c
        self.guess = guess  # [B, H, G, d] query speculated from the previous layer
        self._memo: dict[str, Tensor] = {}

    def memo(self, key: str, make: Callable[[], Tensor]) -> Tensor:
        """Compute once; every value leads with the branch dimension."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def only(self, branches: Tensor) -> Step:
        """The step as these branches (int64 indices) see it."""
        if len(branches) == self.query.shape[0]:
            return self
        guess = None if self.guess is None else self.guess[branches]
        part = Step(
            self.prefix, self.layer, self.count, self.query[branches], self.held[branches],
            self.positions[branches], self.selected, self.scaling, guess,
        )  # fmt: skip
        part._memo = {key: value[branches] for key, value in self._memo.items()}
        return part

    def speculated(self) -> Step:
        """The step with the speculated query in place of the current one (itself in the first layer)."""
        if self.guess is None:
            return self
        guess, layout = self.guess, (self.held, self.positions, self.selected)
        return Step(self.prefix, self.layer, self.count, guess, *layout, self.scaling)

    # Logits ----------------------------------------

    def against(self, query: Tensor, keys: Tensor) -> Tensor:
        """[B, H, G, n] fp32 scaled products of query [B, H, G, r] with keys [H, n, r] of all branches."""
        batch, heads, group, dim = query.shape
        flat = query.transpose(0, 1).reshape(heads, batch * group, dim)
        logits = (flat @ keys.transpose(1, 2)).float() * self.scaling
        return logits.view(heads, batch, group, -1).transpose(0, 1)

    @property
    def held_logits(self) -> Tensor:
        """[B, H, G, entries] exact logits of everything in the cache, the step's own token included."""
        make = lambda: (self.query @ self.held.transpose(-1, -2)).float() * self.scaling  # noqa: E731
        return self.memo("held", make)

    @property
    def rest(self) -> Tensor:
        """[B, H, G] log-sum-exp of the logits outside P: window and generated entries."""
        first = 0 if self.positions is None else self.selected
        return self.memo("rest", lambda: self.held_logits[..., first:].logsumexp(-1))

    @property
    def exact_logits(self) -> Tensor:
        """[B, H, G, N_p] exact logits of the prefix."""
        make = lambda: self.against(self.query, self.prefix.keys_of(self.layer, self.count))  # noqa: E731
        return self.memo("exact", make)

    def place_held(self, logits: Tensor) -> Tensor:
        """Prefix logits [B, H, G, N_p] with the exact ones put in at the positions that are held."""
        wide = self.positions.unsqueeze(2).expand(-1, -1, logits.shape[2], -1)
        return logits.scatter(-1, wide, self.held_logits[..., : self.selected])

    def score_at(self, positions: Tensor) -> Tensor:
        """[B, H, G, k] exact logits at ascending positions [B, H, k], whose keys are remembered."""
        keys = self.prefix.gather(self.prefix.keys, self.layer, positions)
        self._memo["fetched positions"], self._memo["fetched keys"] = positions, keys
        return (self.query @ keys.transpose(-1, -2)).float() * self.scaling

    def entries(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """([B, H, c, d], [B, H, c, d]) keys and values at positions; fetched keys are not read again."""
        known = self._memo.get("fetched positions")
        if known is None:
            keys = self.prefix.gather(self.prefix.keys, self.layer, positions)
        else:
            fetched = self._memo["fetched keys"]
            # Of logits that are NaN, which end their branch, the positions are not among the known.
            at = torch.searchsorted(known, positions).clamp(max=fetched.shape[2] - 1).unsqueeze(-1)
            keys = fetched.gather(2, at.expand(-1, -1, -1, fetched.shape[-1]))
        return keys, self.prefix.gather(self.prefix.values, self.layer, positions)

    # Attention ----------------------------------------

    def attention(self, logits: Tensor, rest: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(softmax probabilities [B, H, G, n], log of their normaliser [B, H, G]).

        The softmax runs over `logits` and, behind them, everything that `rest` (log-sum-exp; default:
        window and generated entries) stands for.
        """
        rest = self.rest if rest is None else rest
        peak = torch.maximum(logits.amax(-1), rest)
        weights = (logits - peak.unsqueeze(-1)).exp_()
        total = weights.sum(-1) + (rest - peak).exp()
        return weights.div_(total.unsqueeze(-1)), peak + total.log()

    def prefix_attention(self, logits: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """attention() of the one set of prefix logits that a triggered policy works with, computed once."""
        if "shares" not in self._memo:
            self._memo["shares"], self._memo["normaliser"] = self.attention(logits())
        return self._memo["shares"], self._memo["normaliser"]

    @staticmethod
    def reduce(shares: Tensor, group: str) -> Tensor:
        """[B, H, G, n] -> [B, H, n] over the query heads of a KV head; all options but max take the mean."""
        return shares.amax(2) if group == "max" else shares.mean(2)

    def shares(self, logits: Tensor, group: str, rest: Tensor | None = None) -> Tensor:
        """[B, H, n] what ranks entries: reduced probabilities, or with group=logits the mean logits."""
        if group == "logits":
            return logits.mean(2)
        return self.reduce(self.attention(logits, rest)[0], group)

    def evicted_mass(self, shares: Tensor, group: str, held: Tensor | None = None) -> Tensor:
        """[B] drift: attention mass on prefix entries that are not held, reduced over G, mean over KV heads.

        shares: [B, H, G, N_p] probabilities. held: bool [B, H, N_p], for branches whose heads hold
        different numbers of entries.
        """
        if held is not None:
            shares = shares.masked_fill(held.unsqueeze(2), 0)
        else:
            shares = shares.scatter(-1, self.positions.unsqueeze(2).expand(-1, -1, shares.shape[2], -1), 0)
        mass = shares.sum(-1)
        return (mass.amax(2) if group == "max" else mass.mean(2)).mean(1)

    @staticmethod
    def top(scores: Tensor, count: int) -> Tensor:
        """[..., count] ascending positions of the highest scores [..., n]; ties go to the lower position."""
        length = scores.shape[-1]
        if count >= length:
            return torch.arange(length, device=scores.device).expand_as(scores)
        if (
            scores.device.type == "cpu"
        ):  # looking costs nothing here: without a tie at the edge, topk is right
            best = scores.topk(count + 1)
            if bool((best.values[..., -2] > best.values[..., -1]).all()):
                return best.indices[..., :-1].sort(-1).values
        least = scores.topk(count).values[..., -1:]
        level = scores == least
        spare = count - (scores > least).sum(-1, keepdim=True)
        chosen = (scores > least) | (level & (level.cumsum(-1) <= spare))
        # Distinct ranks that fall with the position, and nothing to wait for, unlike nonzero().
        ranks = torch.arange(length, 0, -1, device=scores.device, dtype=torch.int32)
        return (chosen * ranks).topk(count).indices
