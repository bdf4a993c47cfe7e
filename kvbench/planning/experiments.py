"""The named experiments of conf/experiment: where each stores its answers, and the paper's table it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from kvbench import reference
from kvbench.checks import suggest
from kvbench.errors import UserError
from kvbench.paths import conf_dir


@dataclass(frozen=True)
class Experiment:
    """``paper`` and ``table`` are empty for an experiment that is not a paper's table."""

    name: str
    store: Path
    paper: str = ""
    table: str = ""
    benchmarks: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What runs it in full."""
        return f"kvbench run experiment={self.name}" + (" profile=paper" if self.paper else "")

    def published(self) -> list[reference.PublishedValue]:
        """The values of the paper's table on this experiment's benchmarks, averages over them included."""
        return [
            row
            for row in reference.rows(self.paper, self.table)
            if any(name == row.benchmark or name.startswith(f"{row.benchmark}_") for name in self.benchmarks)
        ]


def known() -> dict[str, Path]:
    """The files of conf/experiment by name."""
    return {path.stem: path for path in sorted((conf_dir() / "experiment").glob("*.yaml"))}


def find(name: str) -> Experiment:
    """An experiment by its name. Raises UserError, with the nearest name, where there is none."""
    files = known()
    if name not in files:
        raise UserError(f"there is no experiment {name!r}: {suggest(name, files)}")
    document = yaml.safe_load(files[name].read_text("utf-8"))
    store = Path(document.get("store") or "runs/default")
    table = re.fullmatch(rf"({'|'.join(reference.PAPERS)})_table(\d+)(?:_\w+)?", name)
    if table is None:
        return Experiment(name, store)
    benchmarks = document["hydra"]["sweeper"]["params"]["benchmark"].split(",")
    return Experiment(name, store, *table.groups(), tuple(word.strip() for word in benchmarks))


def of_papers() -> list[Experiment]:
    """Every experiment that is a table of a paper, or a part of one."""
    return [found for found in map(find, known()) if found.paper]
