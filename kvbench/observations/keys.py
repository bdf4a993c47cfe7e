"""How alike a prompt's keys are, and what ECOKV makes of it (ECOKV sections 4 and 6.4, appendix B.5).

L layers, H KV heads, N prompt tokens, M candidates. Lists have one number a layer, the mean over KV heads.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import Tensor

from kvbench.methods import build
from kvbench.methods.observation import Observation
from kvbench.observations import BUDGET, QUANTILES

PROJECTED = 4  # heads of the first layer whose keys are drawn


def keys(observation: Observation) -> dict[str, list[float]]:
    """cosine: mean cosine of two different keys; weight: the diversity's weight λ (eq. 6); correlation:
    Spearman's ρ of importance and diversity over the candidates.
    """
    from scipy.stats import spearmanr

    method = build({"name": "snapkv+ecokv"}, BUDGET)
    view = observation.view(method.window, *method.base)
    diversity, importance = method.score.diversity(view).cpu(), view.importance.cpu()
    correlation = [
        statistics.fmean(
            float(spearmanr(importance[layer, head], diversity[layer, head]).statistic)
            for head in range(importance.shape[1])
        )
        for layer in range(importance.shape[0])
    ]
    return {
        "cosine": view.redundancy.mean(1).tolist(),
        "weight": method.score.weight(view).mean(1).tolist(),
        "correlation": correlation,
    }


def geometry(observation: Observation) -> dict[str, list]:
    """What lies behind λ.

    spread: redundancy from Euclidean distances r_E (eq. 5), which is λ for β = 1; distance: mean Euclidean
    distance of the candidates to the mean key (eq. 4); cosines: QUANTILES of each layer's candidates, of
    their mean cosine to all keys.
    """
    method = build({"name": "snapkv+ecokv", "score": {"beta": 1.0}}, BUDGET)
    view = observation.view(method.window, *method.base)
    levels = torch.tensor(QUANTILES, device=view.cosines.device)
    return {
        "spread": method.score.weight(view).mean(1).tolist(),
        "distance": view.centroid_distances().mean((1, 2)).tolist(),
        "cosines": view.cosines.flatten(1).quantile(levels, dim=1).T.tolist(),
    }


def projection(observation: Observation) -> dict[str, Any]:
    """The keys of the first layer's first PROJECTED heads in two dimensions; visual: 1 for visual tokens."""
    heads = [components(head) for head in observation.keys[0, :PROJECTED].float().cpu()]
    return {
        "visual": observation.visual_mask.int().tolist(),
        "points": [points.tolist() for points, _ in heads],
        "explained": [explained.tolist() for _, explained in heads],
    }


def components(points: Tensor) -> tuple[Tensor, Tensor]:
    """[N, d] -> their first two principal components [N, 2], and the share of the variance of each [2].

    The sign of a component is free: here its largest loading is positive.
    """
    centred = points - points.mean(0)
    _, sizes, axes = torch.linalg.svd(centred.double(), full_matrices=False)
    axes = axes[:2]
    signs = axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
    variance = sizes.square()
    return (centred.double() @ (axes * signs).T).float(), variance[:2] / variance.sum()
