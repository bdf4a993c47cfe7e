"""The data whose evidence is known: pages that kvbench draws, with the tiles that answer each question."""

from __future__ import annotations

import json
from typing import Any

PARTS = {"label", "value"}  # of the evidence of a question about one field


def pages(benchmark: str) -> list[dict[str, Any]]:
    """By sample index, the page a question is about and the tiles that answer it."""
    import pandas

    from kvbench.embedded import sets

    file = sets.folder() / benchmark / f"{sets.SPLITS[benchmark]}.parquet"
    return [json.loads(text) for text in pandas.read_parquet(file, columns=["kvbench"])["kvbench"]]


def known(config: dict[str, Any]) -> list[dict[str, Any]]:
    """``pages`` of a benchmark of drawn pages with questions; empty for every other: nobody marked theirs."""
    from kvbench.embedded import sets

    if config.get("data") != "sets" or config["name"] not in sets.SPLITS:
        return []
    if config.get("subset", "full") != "full":
        return []  # samples of a subset are numbered anew
    found = pages(config["name"])
    return found if all(set(page["evidence"]) == PARTS for page in found) else []


def evidence(adapter: Any, page: dict[str, Any], size: tuple[int, int]) -> list[int]:
    """Visual tokens, counted in order, that see label or value; size: the page's picture in pixels."""
    from kvbench.calibration.readings import page_tokens

    tiles = {tile for part in page["evidence"].values() for tile in part}
    return page_tokens(adapter, size, tiles, page["columns"])
