"""How every figure looks, and files with the same bytes on every call.

Figures are made without pyplot, so nothing global remembers them. Colours: Okabe and Ito's eight, which
colour-blind readers tell apart. Ink stands for text and axes; inside a page it becomes the page's own colour.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.store import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d00", "#7f7f7f")
MARKS = "osD^vPX*"
INK = "#1f1f1e"
# Nothing that changes from one call to the next: no date, no version of the library.
_METADATA: dict[str, dict[str, Any]] = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
    "png": {"Software": None},
}
_RC = {
    "svg.hashsalt": "kvbench",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


@contextmanager
def style() -> Iterator[None]:
    """matplotlib's settings for the time of drawing or saving."""
    import matplotlib

    with matplotlib.rc_context(_RC):
        yield


def grid(rows: int, columns: int, width: float = 2.3, height: float = 1.9) -> tuple[Figure, Any]:
    """A figure of rows x columns panels, sizes in inches a panel, and its axes [rows, columns]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns + 1.5, height * rows + 0.6), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def colour(name: str, names: Sequence[str]) -> str:
    return COLOURS[list(names).index(name) % len(COLOURS)]


def mark(name: str, names: Sequence[str]) -> str:
    return MARKS[list(names).index(name) % len(MARKS)]


def legend(figure: Figure, axes: Any) -> None:
    """One legend beside all panels, each name once."""
    found = {}
    for panel in axes.flat:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    if found:
        figure.legend(found.values(), found.keys(), loc="outside right upper")


def save(figure: Figure, path: Path) -> None:
    """Write ``path`` in the format of its suffix, whole or not at all."""
    out = io.BytesIO()
    with style():
        figure.savefig(out, format=path.suffix[1:], dpi=160, metadata=_METADATA[path.suffix[1:]])
    write_atomic(path, out.getvalue(), choose="--out DIR")


def inline(figure: Figure, title: str) -> str:
    """The figure as an ``<svg>`` element for a page: text stays text, ink takes the page's colour."""
    import html

    import matplotlib

    out = io.StringIO()
    with style(), matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(out, format="svg", transparent=True, metadata=_METADATA["svg"])
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    # Ids are unique in a drawing, not in a page of several.
    prefix = re.sub(r"\W+", "-", title) + "-"
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)
