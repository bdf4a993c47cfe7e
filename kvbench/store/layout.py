"""Where a store keeps what: STORE/MODEL/BENCHMARK/{journal*.jsonl, cells/, results/, scores/}."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.errors import UserError
from kvbench.store.files import canonical, pretty, write_atomic
from kvbench.store.lock import locked


@dataclass(frozen=True)
class Cell:
    """A cell as a store knows it.

    ``config`` is the resolved identity config that ``digest`` names; ``folder`` is STORE/MODEL/BENCHMARK.
    ``method`` names the refresh as well, as in ``snapkv+bacon refresh=rcr``. ``budget`` is None for fullkv.
    """

    digest: str
    model: str
    benchmark: str
    method: str
    budget: int | None
    seed: int
    prompt: str
    config: dict[str, Any]
    folder: Path

    @classmethod
    def from_config(cls, digest: str, config: dict[str, Any], folder: Path) -> Cell:
        return cls(
            digest=digest,
            model=config["model"]["name"],
            benchmark=config["benchmark"]["name"],
            method=method_label(config["method"]),
            budget=config["budget"],
            seed=config["seed"],
            prompt=config["prompt"],
            config=config,
            folder=folder,
        )

    @property
    def first(self) -> str:
        """The method of the first selection, without the refresh."""
        return self.config["method"]["name"]

    @property
    def refresh(self) -> str:
        """The name of the re-selection policy; ``none`` for fullkv and one-shot selection."""
        return (self.config["method"].get("refresh") or {"name": "none"})["name"]

    @property
    def options(self) -> dict[str, Any]:
        """Flat options of the method: ``window``, ``score.radius``, ``capacity.ratio``, ..."""
        flat: dict[str, Any] = {}
        for key, value in self.config["method"].items():
            if isinstance(value, dict):
                flat.update({f"{key}.{name}": option for name, option in value.items() if name != "name"})
            elif key != "name":
                flat[key] = value
        return flat

    @property
    def earlier(self) -> bool:
        """Whether the method's source has changed since: then its answers are not those it gives now.

        Stores of before sources had versions count as earlier. A method that is not here contradicts nothing.
        """
        from kvbench.methods import version

        try:
            now = version.of(self.config["method"])
        except UserError:
            return False
        return now is not None and now != self.config.get("code")

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key: model, benchmark, fullkv first, then method, larger budgets first."""
        capacity = self.config["method"].get("capacity")
        budget = -self.budget if self.budget is not None else 0
        return (
            self.model,
            self.benchmark,
            capacity is not None,
            self.method,
            budget,
            self.seed,
            self.prompt,
            self.digest,
        )


def method_label(spec: dict[str, Any]) -> str:
    """``snapkv+bacon``, or with re-selection ``snapkv+bacon refresh=rcr``."""
    refresh = spec.get("refresh")
    return spec["name"] if refresh is None else f"{spec['name']} refresh={refresh['name']}"


def group_folder(store: Path, model: str, benchmark: str) -> Path:
    """STORE/MODEL/BENCHMARK, with anything that is not a plain file name replaced."""
    return store / _plain(model) / _plain(benchmark)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "-", name).lstrip(".") or "-"


def journal_path(folder: Path, shard: int = 0, shards: int = 1) -> Path:
    """One journal per shard; a run that is not sharded writes journal.jsonl."""
    return folder / ("journal.jsonl" if shards == 1 else f"journal-{shard}of{shards}.jsonl")


def journals(folder: Path) -> list[Path]:
    """Every journal of a (model, benchmark), in name order."""
    return sorted(folder.glob("journal*.jsonl"))


def write_cell(cell: Cell) -> None:
    """Write cells/DIGEST.json: the config alone, so that it has the same bytes on every run."""
    write_atomic(cell.folder / "cells" / f"{cell.digest}.json", pretty(cell.config))


def write_cells(found: Iterable[Cell], folder: Path) -> None:
    """Write cells/DIGEST.json of every cell of ``folder``; workers that start together take turns."""
    with locked(folder / "results.lock"):
        sweep(folder / "cells")
        for cell in found:
            write_cell(cell)


def sweep(folder: Path) -> None:
    """Remove temporary files of writers that were killed; to be called under the lock of their folder."""
    for path in folder.glob("*.tmp"):
        path.unlink(missing_ok=True)


def _check_readable(folder: Path) -> None:
    """Raise PermissionError for what ``glob`` would pass over in silence, two levels down."""
    for inner in os.scandir(folder):
        if inner.is_dir():
            for innermost in os.scandir(inner):
                if innermost.is_dir():
                    os.scandir(innermost).close()


def folders(store: Path) -> Iterator[Path]:
    """Every STORE/MODEL/BENCHMARK that has cells."""
    if store.is_dir():
        _check_readable(store)
        for cells_folder in sorted(store.glob("*/*/cells")):
            _check_readable(cells_folder)
            yield cells_folder.parent


def check_versions(found: Iterable[Cell], store: Path) -> None:
    """Raise UserError when ``found``, with what ``store`` holds beside it, mixes versions no table may mix.

    Cells with one model, benchmark, seed and prompt by name must mean the same model and questions.
    """
    groups: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in {cell.digest: cell for cell in [*cells(store), *found]}.values():
        groups[cell.model, cell.benchmark, cell.seed, cell.prompt].append(cell)
    wanted = {(cell.model, cell.benchmark, cell.seed, cell.prompt) for cell in found}
    for key in wanted:
        for part in ("model", "benchmark"):
            versions = {canonical(cell.config[part]) for cell in groups[key]}
            if len(versions) > 1:
                name = getattr(groups[key][0], part)
                raise UserError(
                    f"{store} would hold answers of {len(versions)} versions of {part} {name}, which no "
                    f"table may mix: choose another store=DIR, or move {groups[key][0].folder} away first."
                )


def cells(store: Path | str) -> list[Cell]:
    """The cells of a store whose methods are as they are now, sorted by ``Cell.order``."""
    return [cell for cell in every_cell(store) if not cell.earlier]


def every_cell(store: Path | str) -> list[Cell]:
    """Those of earlier versions of a method too."""
    from kvbench.methods import plugins

    plugins.remember(Path(store))
    found = [cell for folder in folders(Path(store)) for cell in cells_of(folder)]
    return sorted(found, key=lambda cell: cell.order)


def cells_of(folder: Path) -> Iterator[Cell]:
    """Every cell of one STORE/MODEL/BENCHMARK, of earlier versions too."""
    for path in folder.glob("cells/*.json"):
        try:
            config = json.loads(path.read_text("utf-8"))
            yield Cell.from_config(path.stem, config, folder)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path} is not a cell config ({error}): delete it and run the same command again."
            ) from error
        except OSError as error:
            raise UserError(
                f"cannot read {path} ({error.strerror}): check the store's permissions."
            ) from error
