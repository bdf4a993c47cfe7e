"""For a paper: booktabs, pdfLaTeX, nothing but ASCII in the source; at most a page wide."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from kvbench.rendering.record import MISSING, Heading, Record, Row, Shown

WIDEST = {True: 6, False: 8}  # columns of values that fit a page: with differences and intervals, without
LONG = 25  # signs: a column with a longer cell holds sentences
PREAMBLE = "% needs \\usepackage{booktabs}"

# Our own signs, and what LaTeX reads as commands.
_SIGNS = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after a line end, LaTeX takes a bare one for an argument
    "*": "{*}",
    '"': "''",  # the default font encoding has no straight quotes
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\rightarrow$",
    "●": r"$\bullet$",
    "×": r"$\times$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "τ": r"$\tau$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    MISSING: "---",
    "–": "--",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def escape(text: str) -> str:
    """``text`` so that LaTeX prints it; signs that its default fonts lack are named by their code point."""
    return "".join(_SIGNS.get(sign) or _sign(sign) for sign in text)


def _sign(sign: str) -> str:
    if " " <= sign <= "~":
        return sign
    if sign in "\n\r\t":
        return " "
    plain = unicodedata.normalize("NFKD", sign)
    base = "".join(part for part in plain if not unicodedata.combining(part))
    return escape(base) if base.isascii() and base else f"[U+{ord(sign):04X}]"


def show(record: Record) -> str:
    """One ``table`` environment per page width; the legend and the footer stand under the last one."""
    pages: list[list[tuple[int, Heading]]] = [[]]
    at = 0
    for group in record.groups:
        if pages[-1] and sum(len(g.columns) for _, g in pages[-1]) + len(group.columns) > WIDEST[record.even]:
            pages.append([])
        pages[-1].append((at, group))
        at += len(group.columns)
    lines = [PREAMBLE]
    label = re.sub(r"[^a-z0-9]+", "-", record.title.lower()).strip("-")
    for number, page in enumerate(pages, 1):
        of, part = (f" ({number} of {len(pages)})", f"-{number}") if len(pages) > 1 else ("", "")
        lines += [r"\begin{table}[htbp]", r"\centering\small"]
        lines += [f"\\caption{{{escape(record.title)}{of}}}", f"\\label{{tab:{label}{part}}}"]
        lines += _tabular(record, page)
        if number == len(pages) and record.notes:
            legend, *notes = record.notes
            lines += [f"\n\\par\\smallskip\\raggedright\\footnotesize {escape(legend.replace('●', 'bold:'))}"]
            lines += [f"\\par {escape(note.strip())}" for note in notes]
        lines.append(r"\end{table}")
    return "\n".join(lines) + "\n"


def _tabular(record: Record, page: Sequence[tuple[int, Heading]]) -> list[str]:
    places = [at + place for at, group in page for place in range(len(group.columns))]
    rows = [row for row in record.rows if any(row.cells[place].text for place in places)]
    labels = _kind([row.label for row in rows], True)
    kinds = [_kind([row.cells[p].text for row in rows], p + 1 < record.left) for p in places]
    lines = [] if record.even else [r"\scriptsize\setlength{\tabcolsep}{3pt}"]
    lines += [
        f"\\begin{{tabular}}{{{labels}{'c' * len(places) if record.even else ''.join(kinds)}}}",
        r"\toprule",
    ]
    if record.grid:
        lines += _headings([group for _, group in page])
    names = [record.corner, *(name for _, group in page for name in group.columns)]
    lines += [" & ".join(map(escape, names)) + r" \\", r"\midrule"]
    for number, row in enumerate(rows):
        lines += [r"\addlinespace"] * (row.apart and number > 0)
        lines += _spanning(row, page) if row.spans else _row(row, places)
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _kind(texts: Sequence[str], words: bool) -> str:
    if max(map(len, texts), default=0) > LONG:
        return r"p{0.2\linewidth}"
    return "l" if words else "r"


def _headings(groups: Sequence[Heading]) -> list[str]:
    heads, rules, at = [""], [], 2
    for group in groups:
        heads.append(f"\\multicolumn{{{len(group.columns)}}}{{c}}{{{escape(group.heading)}}}")
        rules.append(f"\\cmidrule(lr){{{at}-{at + len(group.columns) - 1}}}")
        at += len(group.columns)
    return [" & ".join(heads) + r" \\", "".join(rules)]


def _spanning(row: Row, page: Sequence[tuple[int, Heading]]) -> Iterator[str]:
    """One value over all columns of a group."""
    cells = [
        f"\\multicolumn{{{len(group.columns)}}}{{c}}{{{_number(row.cells[at].text)}}}" for at, group in page
    ]
    yield " & ".join([escape(row.label), *cells]) + r" \\"


def _row(row: Row, places: Sequence[int]) -> Iterator[str]:
    """Values with their differences, then the intervals in small type where there is one."""
    cells = [row.cells[place] for place in places]
    yield " & ".join([escape(row.label), *map(_value, cells)]) + r" \\"
    if any(cell.below for cell in cells):
        small = [f"{{\\scriptsize {_number(cell.below)}}}" if cell.below else "" for cell in cells]
        yield " & ".join(["", *small]) + r" \\"


def _value(cell: Shown) -> str:
    text = f"\\textbf{{{_number(cell.text)}}}" if cell.best else _number(cell.text)
    return f"{text} {_number(cell.delta.replace('●', ''))}".strip()


def _number(text: str) -> str:
    """Escaped, with a true minus before a number."""
    return re.sub(r"(?<![\w}])-(?=\d)", "$-$", escape(text))
