"""For a paper: booktabs, pdfLaTeX, nothing but ASCII in the source."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from kvbench.analysis.tables.shape import HOLE, Column, Table, family, is_full
from kvbench.analysis.tables.show import groups, legend, parts

WIDEST = 6  # columns of values that fit a page
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
    HOLE: "---",
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


def to_latex(item: Table) -> str:
    """One ``table`` environment per page width; the legend and the footer stand under the last one."""
    pages: list[list[list[Column]]] = [[]]
    for block in groups(item.columns):
        if pages[-1] and sum(map(len, pages[-1])) + len(block) > WIDEST:
            pages.append([])
        pages[-1].append(block)
    return document(
        item.model, [_tabular(item, page) for page in pages], [legend(item, "bold:"), *item.footer]
    )


def document(title: str, tabulars: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """One ``table`` environment a tabular (lines of LaTeX), the notes (plain text) under the last one."""
    lines = [PREAMBLE]
    for number, tabular in enumerate(tabulars, 1):
        of = f" ({number} of {len(tabulars)})" if len(tabulars) > 1 else ""
        lines += [r"\begin{table}[htbp]", r"\centering\small", f"\\caption{{{escape(title)}{of}}}"]
        lines += tabular
        if number == len(tabulars):
            lines += [f"\n\\par\\smallskip\\raggedright\\footnotesize {escape(notes[0])}"]
            lines += [f"\\par {escape(note.strip())}" for note in notes[1:]]
        lines.append(r"\end{table}")
    return "\n".join(lines) + "\n"


def _tabular(item: Table, page: list[list[Column]]) -> list[str]:
    heads, rules, at = [], [], 2
    for block in page:
        heads.append(f"\\multicolumn{{{len(block)}}}{{c}}{{{escape(block[0].heading)}}}")
        rules.append(f"\\cmidrule(lr){{{at}-{at + len(block) - 1}}}")
        at += len(block)
    columns = [column for block in page for column in block]
    lines = [
        f"\\begin{{tabular}}{{l{'c' * len(columns)}}}",
        r"\toprule",
        " & ".join(["", *heads]) + r" \\",
        "".join(rules),
        " & ".join(["method", *(str(column.budget or "full") for column in columns)]) + r" \\",
        r"\midrule",
    ]
    previous = None
    for label in item.grid:
        if previous is not None and family(label)[0] != previous:
            lines.append(r"\addlinespace")
        previous = family(label)[0]
        lines += _full(item, label, page) if is_full(label) else _rows(item, label, columns)
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _full(item: Table, label: str, page: list[list[Column]]) -> list[str]:
    """One value over all budgets of a benchmark."""
    values = [parts(item, label, block[0])[0] for block in page]
    cells = [
        f"\\multicolumn{{{len(block)}}}{{c}}{{{escape(value)}}}"
        for block, value in zip(page, values, strict=True)
    ]
    return [" & ".join([escape(label), *cells]) + r" \\"]


def _rows(item: Table, label: str, columns: list[Column]) -> list[str]:
    """Values with their differences, then the intervals in small type where there is one."""
    first, second = [escape(label)], [""]
    for column in columns:
        text, delta, interval = (escape(part.replace("●", "")) for part in parts(item, label, column))
        shown = f"\\textbf{{{text}}}" if item.grid[label][column].best else text
        first.append(f"{shown} {delta}".strip())
        second.append(f"{{\\scriptsize {interval}}}" if interval else "")
    lines = [" & ".join(first) + r" \\"]
    return [*lines, " & ".join(second) + r" \\"] if any(second) else lines
