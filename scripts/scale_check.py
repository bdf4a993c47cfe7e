"""Measure a large store: cells x synthetic samples through store, status, merge, score and table.

    scripts/scale_check.py [--cells 1000] [--samples 10000] [--folder DIR]

Each stage runs in a process of its own; printed are its seconds and its peak memory.  Exit code 1 when one
takes more than two minutes or two gigabytes.  The answers are made up, the score of one is its agreement with
a made-up truth, and every question is a cluster of its own; journals, merge (the results of one (model,
benchmark), as each job ends), scores, summaries and the table are the real ones.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODELS, BENCHMARKS = 4, 5
STAGES = ("store", "status", "merge", "score", "table")
SECONDS, MEMORY = 120, 2.0  # of one stage; GB


def write(store: Path, cells: int, samples: int) -> None:
    """Journals as a run writes them: samples in order, the cells of a group in one append."""
    from kvbench import store as stores

    each = cells // (MODELS * BENCHMARKS)
    for model in range(MODELS):
        for benchmark in range(BENCHMARKS):
            folder = stores.group_folder(store, f"model{model}", f"scale{benchmark}")
            found = []
            for number in range(each):
                method = f"snapkv+m{number}" if number else "fullkv"
                budget = 64 if number else None
                spec = {"name": method, "window": 16, "capacity": {"name": "uniform"}, "score": {"name": "x"}}
                if not number:
                    spec = {"name": "fullkv", "window": None, "capacity": None, "score": None}
                config = {
                    "model": {"name": f"model{model}"},
                    "benchmark": {"name": f"scale{benchmark}"},
                    "method": spec,
                    "budget": budget,
                    "seed": 0,
                    "prompt": "default",
                }
                cell = stores.Cell.from_config(f"{model}{benchmark}{number:014d}", config, folder)
                stores.write_cell(cell)
                found.append(cell)
            run = {"versions": {}, "git": None, "device": "cpu", "dtype": "float32", "seed": 0}
            run |= {"command": ["kvbench"], "host": "x", "started": "2020-01-01T00:00:00+00:00"}
            session = stores.session_of(run)
            with stores.Writer(folder / "journal.jsonl", sync=5.0) as writer:
                writer.append([{"limit": samples, "size": samples}, stores.run_record(run)])
                for index in range(samples):
                    writer.append(
                        {
                            "cell": cell.digest,
                            "sample": f"q{index}",
                            "index": index,
                            "text": f"word {(index * 7 + number) % 11}",
                            "tokens": [index % 97, number, 3, 2],
                            "stopped": "eos",
                            "prompt_length": 400,
                            "kept": {"shape": [28, 4], "entries": cell.budget or 400},
                            "seconds": 0.5,
                            "session": session,
                        }
                        for number, cell in enumerate(found)
                    )


def merge(store: Path) -> None:
    from kvbench import store as stores

    every = stores.cells(store)
    folder = every[0].folder
    stores.write_results([cell for cell in every if cell.folder == folder], folder)


def score(store: Path) -> None:
    from kvbench import analysis, benchmarks
    from kvbench.benchmarks.base import Scores

    class Synthetic:
        """Exact match with a made-up truth."""

        name = "scale"

        def size(self) -> int:
            return 1 << 30

        def score_cells(self, texts, indices, **_):
            scored, n = {}, len(indices)
            clusters = {i: f"q{i}" for i in indices}
            for digest, column in texts.items():
                values = {i: float(column[i] == f"word {i * 7 % 11}") for i in indices}
                scored[digest] = Scores(
                    n, {"score": sum(values.values()) / n}, {"score": values}, clusters=clusters
                )
            return scored

    benchmarks.load = lambda cfg: Synthetic()
    for warning in analysis.score_store(store):
        print(warning)


def stage(name: str, store: Path, cells: int, samples: int) -> None:
    from kvbench import analysis
    from kvbench.commands import status

    if name == "store":
        write(store, cells, samples)
    elif name == "status":
        assert status.show(store, watch=False, list_cells=False)
    elif name == "merge":
        merge(store)
    elif name == "score":
        score(store)
    else:
        text = analysis.table(store)
        print(f"a table of {len(text.splitlines())} lines")


def held(pid: int) -> float:
    """GB that a process and those it started hold together, shared pages counted once."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has just ended
        return 0.0
    pss = next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)
    return pss / 1e6 + sum(held(int(child)) for child in children)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--stages", default=",".join(STAGES), help="in a --folder that has the earlier ones")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        stage(options.stage, options.folder, options.cells, options.samples)
        return 0
    within = True
    with tempfile.TemporaryDirectory() as temporary:
        store = options.folder or Path(temporary) / "store"
        store.mkdir(parents=True, exist_ok=True)
        for name in options.stages.split(","):
            words = [sys.executable, __file__, "--stage", name, "--folder", str(store)]
            words += ["--cells", str(options.cells), "--samples", str(options.samples)]
            began = time.monotonic()
            child = subprocess.Popen(words)
            memory = 0.0
            while child.poll() is None:
                memory = max(memory, held(child.pid))
                time.sleep(0.1)
            seconds = time.monotonic() - began
            print(f"{name}: {seconds:.1f} s, {memory:.2f} GB", flush=True)
            if child.returncode:
                return 2
            within &= seconds <= SECONDS and memory <= MEMORY
    return 0 if within else 1


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
