"""The page itself: what the template gets, and the template filled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvbench.report import Options
from kvbench.support import masking

HERE = Path(__file__).parent


def render(stores: Sequence[Path], options: Options, warnings: Sequence[str], key: str) -> str:
    """The whole page. Everything that is not marked up here is escaped by the template."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    template = environment.get_template("report.html")
    pictures: dict[str, str] = {}
    return template.render(
        key=key,
        css=Markup((HERE / "report.css").read_text("utf-8")),
        js=Markup((HERE / "report.js").read_text("utf-8")),
        warnings=warnings,
        stores=[_store(store, options, pictures) for store in stores],
        pictures=pictures,
    )


def _store(store: Path, options: Options, pictures: dict[str, str]) -> dict[str, Any]:
    """Tables, figures, tidy rows, sample groups and provenance of one store."""
    from markupsafe import Markup

    from kvbench.analysis.figures import draw
    from kvbench.analysis.figures.style import inline
    from kvbench.analysis.results import COLUMNS, entries, rows
    from kvbench.analysis.tables import build, published, record
    from kvbench.rendering import html
    from kvbench.report.samples import embedded, groups

    found = entries(store)
    models = dict.fromkeys(entry.cell.model for entry in found)
    return {
        "name": store.name,
        "tables": [Markup(html.show(record(build(found, model, store)))) for model in models],
        "published": [(name, Markup(table)) for name, table in published(found, store)],
        "claims": _claims(store),
        "columns": COLUMNS,
        "rows": rows(found),
        "figures": [(name, Markup(inline(figure, name))) for name, figure in draw(store).items()],
        "groups": [
            {**group, "json": Markup(embedded(group["data"]))} for group in groups(found, options, pictures)
        ],
        "provenance": _provenance(found),
    }


def _claims(store: Path) -> dict[str, Any] | None:
    """The papers' claims, for a store on which `kvbench claims` has measured."""
    if not (store / "claims").is_dir():
        return None
    from kvbench import claims
    from kvbench.claims import verdicts

    papers, commands = verdicts.parts(claims.rows(store), str(store))
    return {"columns": verdicts.COLUMNS, "papers": papers, "commands": commands}


def _provenance(found: Sequence[Any]) -> list[dict[str, Any]]:
    """Distinct circumstances of the answers, with the cells that were computed under them."""
    from kvbench.store import canonical, load_folder

    folders = {folder: load_folder(folder) for folder in {entry.cell.folder for entry in found}}
    runs: dict[str, dict[str, Any]] = {}
    for entry in found:
        for run in folders[entry.cell.folder].runs.get(entry.cell.digest, {}).values():
            run = {**run, "command": masking.command(run.get("command") or [])}  # of earlier releases too
            known = runs.setdefault(canonical(run), {"run": run, "cells": 0})
            known["cells"] += 1
    return list(runs.values())
