"""The low-rank detector: what a refresh of RCR, and of its baseline with a fixed threshold, goes by.

Detector: keys of the prefix projected on their top right singular vectors. Where the source is silent: the
group is reduced by the mean of the softmax probabilities (option `group`); the exact scores of the
candidates are normalised together with the detector's estimate for everything else; ties go to the lower
position.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.errors import UserError
from kvbench.methods.refresh.base import Cost, Triggered
from kvbench.methods.registry import option


@dataclass(frozen=True)
class LowRank(Triggered):
    """Drift and candidates from projected keys, exact scores for the candidates alone."""

    rank: int = option(8, "singular vectors of the detector", minimum=1)
    candidates: int | None = option(
        None, "entries scored exactly on a trigger; default: 4 x selected", minimum=1
    )

    def check(self, selected):
        if self.candidates is not None and self.candidates < selected:
            raise UserError(
                f"refresh `{self.name}` cannot select {selected} entries out of {self.candidates} "
                f"candidates: set refresh.candidates to {4 * selected}, or at least {selected}."
            )

    def check_model(self, head_dim):
        self.check_rank(self.rank, head_dim)

    def pool(self, prefix: int, selected: int) -> int:
        """Candidates at a prefix of N_p entries."""
        return min(prefix, 4 * selected if self.candidates is None else self.candidates)

    def cost(self, prefix, dim, selected):
        detector = prefix * self.rank / dim
        return Cost(held=detector, dots=detector, fetched=self.pool(prefix, selected) + selected)

    def logits(self, step):
        return step.memo("detected", lambda: self._detect(step))

    def _detect(self, step):
        """[B, H, G, N_p] detector logits, exact ones at the entries that are held."""
        basis, reduced = step.prefix.memo(("detector", self.rank, step.count), lambda: self._detector(step))
        query = step.query @ basis[step.layer].unsqueeze(0).to(step.query.dtype)
        return step.place_held(step.against(query, reduced[step.layer]))

    def _detector(self, step):
        """([L, H, d, r] basis V_r, [L, H, N_p, r] K V_r) of every layer's prefix."""
        import torch

        bases, projected = [], []
        for layer in range(step.prefix.layers):
            keys = step.prefix.keys_of(layer, step.count)
            wide = keys.float()
            basis = torch.linalg.eigh(wide.transpose(1, 2) @ wide).eigenvectors[..., -self.rank :]
            bases.append(basis)
            projected.append((wide @ basis).to(keys.dtype))
        return torch.stack(bases), torch.stack(projected)

    def propose(self, step):
        import torch

        logits = self.logits(step)
        shares, normaliser = step.prefix_attention(lambda: logits)
        guess = logits.mean(-2) if self.group == "logits" else step.reduce(shares, self.group)
        candidates = step.top(guess, self.pool(step.count, step.selected))
        exact = step.score_at(candidates)
        wide = candidates.unsqueeze(2).expand(-1, -1, logits.shape[2], -1)
        others = shares.scatter(-1, wide, 0).sum(-1) + (step.rest - normaliser).exp()
        weights = step.shares(exact, self.group, rest=normaliser + torch.log(others))
        return candidates.gather(-1, step.top(weights, step.selected))
