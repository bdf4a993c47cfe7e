"""Cutting a prefix into pages, shared by Quest and ArkVale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


def check_page(policy, selected: int) -> None:
    """UserError when whole pages cannot fill the selection."""
    if selected % policy.page:
        raise UserError(
            f"a page of {policy.page} does not divide the {selected} selected entries of refresh "
            f"`{policy.name}`: choose refresh.page among the divisors of {selected}."
        )


def split_pages(keys: Tensor, page: int, fill: float) -> Tensor:
    """[H, n, d] -> [H, pages, page, d], the last page filled up with `fill`."""
    import torch.nn.functional as F

    heads, count, dim = keys.shape
    return F.pad(keys, (0, 0, 0, -count % page), value=fill).view(heads, -1, page, dim)


def spread(scores: Tensor, page: int, count: int) -> Tensor:
    """[..., pages] -> [..., count]: every entry has its page's score, so the top entries are the top pages.

    When the unfilled last page is among them, the next best page lends the entries that are missing.
    """
    return scores.repeat_interleave(page, -1)[..., :count]
