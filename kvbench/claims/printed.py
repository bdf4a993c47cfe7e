"""The papers' figures as words, taken from the published tables of ``kvbench.reference``."""

from __future__ import annotations

from kvbench import reference

TITLES = {
    "docvqa": "DocVQA",
    "textvqa": "TextVQA",
    "chartqa": "ChartQA",
    "ocrbench": "OCRBench",
    "longbench": "LongBench",
}


def value(
    paper: str, table: str, method: str, benchmark: str, model: str, setting: str = "", budget: int = 64
) -> str:
    """The printed digits of one method."""
    (found,) = (
        row
        for row in reference.rows(paper, table)
        if (row.method, row.benchmark, row.model, row.budget) == (method, benchmark, model, budget)
        and set(setting.split()) == set(row.setting.split())
    )
    return found.value


def steps(
    paper: str, table: str, benchmark: str, *methods: str, model: str = "qwen2_vl_7b", budget: int = 64
) -> str:
    """``DocVQA 70.1 → 85.5``: methods (``name`` or ``name setting``) in this order."""
    values = []
    for method in methods:
        name, _, setting = method.partition(" ")
        values.append(value(paper, table, name, benchmark, model, setting, budget))
    return f"{TITLES[benchmark]} {' → '.join(values)} (table {table}, budget {budget})"
