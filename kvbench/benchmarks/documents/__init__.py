"""documents_mini: real text in a text-only benchmark.

Twenty passages of licences, a standard and public-domain prose (texts/; index.json gives title, source
and licence of each), each followed by an instruction. There is no reference answer: what counts is how
far an answer moves from the same model's uncompressed answer. Texts that may only be copied verbatim are
shipped whole; the passage is a range of their lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from kvbench.benchmarks.base import Benchmark, Sample, Scores
from kvbench.benchmarks.fidelity import AGREEMENT, DIVERGENCE, ROUGE
from kvbench.errors import UserError

FOLDER = Path(__file__).parent


def passage(folder: Path, entry: Mapping[str, Any]) -> str:
    """The lines of a text that an entry of index.json names."""
    lines = (folder / "texts" / entry["file"]).read_text(encoding="utf-8").split("\n")
    return "\n".join(lines[entry["first_line"] - 1 : entry["last_line"]])


class DocumentsBenchmark(Benchmark):
    """Passages and instructions from this folder, or from ``data: FOLDER`` laid out alike."""

    about = "text"

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        data = str(cfg.get("data") or "package")
        self.folder = FOLDER if data == "package" else Path(data).expanduser()
        if not (self.folder / "index.json").is_file():
            raise UserError(
                f"benchmark {self.name} finds no index.json in {self.folder}: set benchmark.data=package."
            )
        unknown = [
            metric for metric in {*self.metrics, self.metric} if metric not in (ROUGE, AGREEMENT, DIVERGENCE)
        ]
        if unknown:
            raise UserError(
                f"benchmark {self.name} has no metric {unknown[0]!r}: choose from {ROUGE}, {AGREEMENT},"
                f" {DIVERGENCE}."
            )

    @cached_property
    def index(self) -> list[dict[str, Any]]:
        """The entries of index.json in order."""
        return json.loads((self.folder / "index.json").read_text(encoding="utf-8"))

    def size(self) -> int:
        return len(self.index)

    def at(self, indices: Sequence[int]) -> list[Sample]:
        entries = [(index, self.index[index]) for index in indices]
        return [Sample(id=e["id"], index=i, text=self._prompt(e), images=list) for i, e in entries]

    def clusters(self, indices: Sequence[int]) -> dict[int, str]:
        """The text that a passage is from."""
        return {index: self.index[index]["file"] for index in indices}

    def _prompt(self, entry: Mapping[str, Any]) -> str:
        return f"{passage(self.folder, entry)}\n\n{entry['instruction']}"

    def task_scores(
        self, cells: Mapping[str, Mapping[int, str]], indices: Sequence[int]
    ) -> dict[str, Scores]:
        """No figure of its own: fidelity is added by ``score_cells``."""
        return {name: Scores(n=len(indices)) for name in cells}
