"""What ``kvbench.generate`` returns: answers by method and budget, shown as a table in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvbench.errors import UserError

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from PIL import Image

Key = tuple[str, "int | None"]


@dataclass(frozen=True)
class Answered:
    """One answer. ``kept``: ascending prompt positions per layer and KV head; None: all of them.

    ``entries``: how many per layer and KV head. ``stopped``: "eos", "length" or "until". ``seconds``: of
    "prefill", "select", "decode" and "all", which the answers to one prompt share.
    """

    text: str
    tokens: list[int] = field(repr=False)
    kept: list[list[Any]] | None = field(repr=False)
    entries: list[list[int]] = field(repr=False)
    stopped: str
    seconds: dict[str, float] = field(repr=False)

    @property
    def mean_entries(self) -> float:
        """Entries per KV head, mean over layers and heads."""
        heads = [count for layer in self.entries for count in layer]
        return sum(heads) / len(heads)


class Answers(Mapping[Key, Answered]):
    """By (method, budget), as they were asked; what keeps everything is at budget None, and at any other."""

    def __init__(
        self,
        prompt: str,
        images: list[Image.Image],
        cells: dict[Key, Answered],
        visual_mask: Any,
        grids: list[dict[str, Any]] | None,
    ) -> None:
        self.prompt, self.images = prompt, images
        self._cells, self._visual, self._grids = cells, visual_mask, grids

    def __getitem__(self, key: Key | str) -> Answered:
        """Raises UserError, with what there is, for a method or budget that was not asked."""
        method, budget = (key, None) if isinstance(key, str) else key
        for at in ((method, budget), (method, None)):
            if at in self._cells:
                return self._cells[at]
        known = ", ".join(f"{name!r}" if b is None else f"({name!r}, {b})" for name, b in self._cells)
        raise UserError(f"there is no answer of {key!r}: there are {known}.")

    def __contains__(self, key: object) -> bool:
        return key in self._cells

    def __iter__(self) -> Iterator[Key]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    @property
    def frame(self) -> pandas.DataFrame:
        """One row an answer: method, budget, entries, text, tokens, stopped."""
        import pandas

        rows = [
            {
                "method": method,
                "budget": budget,
                "entries": round(answer.mean_entries, 1),
                "text": answer.text,
                "tokens": len(answer.tokens),
                "stopped": answer.stopped,
            }
            for (method, budget), answer in self._cells.items()
        ]
        frame = pandas.DataFrame(rows)
        return frame.astype({"budget": "Int64"})

    def overlay(self, method: str, budget: int | None = None) -> Figure:
        """The first picture under the share of (layer, KV head) pairs that keep each visual token.

        Raises UserError where there is no picture, or the model does not say where its tokens lie.
        """
        from kvbench.analysis.figures.overlay import picture

        if not self.images or self._grids is None:
            raise UserError("the prompt has no picture, or the model does not say where its tokens lie.")
        grid = self._grids[0]
        return picture(self.images[0], self._shares(self[method, budget], grid), grid, f"{method}, {budget}")

    def _shares(self, answer: Answered, grid: dict[str, Any]) -> Any:
        """[rows, columns] of the first picture's tokens."""
        import torch

        rows, columns = grid["rows"], grid["columns"]
        if answer.kept is None:
            return torch.ones(rows, columns).numpy()
        places = self._visual.nonzero().flatten()[: rows * columns]
        heads = [head.cpu() for layer in answer.kept for head in layer]
        shares = torch.stack([torch.isin(places, head) for head in heads]).float().mean(0)
        return shares.view(rows, columns).numpy()

    def __repr__(self) -> str:
        return f"Answers({self.prompt!r}: {len(self)} of one prefill)\n{self.frame.to_string(index=False)}"

    def _repr_html_(self) -> str:
        from kvbench.rendering import html, plain

        rows = [["" if value is None else str(value) for value in row] for row in self.frame.values.tolist()]
        rows = [[("" if cell in ("<NA>", "nan") else cell) for cell in row] for row in rows]
        return html.show(plain(self.prompt, list(self.frame), rows, left=1))
