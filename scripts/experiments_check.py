"""Every experiment planned as the papers have it, then run at toy size on micro data to a complete table.

    python scripts/experiments_check.py                    # all; a line each, exit code 1 if one has a hole
    python scripts/experiments_check.py bacon_table5       # some

Random weights and drawn data: the figures mean nothing, that there is one in every cell does.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path

from kvbench import cli, experiments, plan
from kvbench.analysis.tables.shape import HOLE

TOY = ["model.weights=random", "++model.size=toy", "model.dtype=float32", "benchmark.data=micro"]
HEADS = {f"{layer}-{head}": [1 + (layer + head) % 3] for layer in range(4) for head in range(6)}  # of a toy


def command(*words: str) -> tuple[int, str]:
    """Exit code of a command, and all that it printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.main(list(words))
    return code, said.getvalue()


def check(name: str, folder: Path) -> str:
    """`ok`, or what went wrong."""
    heads = folder / "heads.json"
    heads.write_text(json.dumps(HEADS))
    words = [f"experiment={name}", "profile=paper"]
    code, said = command("plan", *words)
    if code:
        return f"plan: {said.strip()}"
    jobs = plan.jobs(words)
    if jobs[0].config["observe"]:
        return "ok (planned; it observes prompts and has no table)"
    if jobs[0].config["model"]["adapter"] == "embedded":
        return "ok (planned; of the embedded model, run by make claims)"
    store = f"store={folder / name}"
    toy = [*TOY, f"++model.head_scores={heads}"] if _has_heads(jobs) else TOY
    if str(jobs[0].config["benchmark"].get("subset")).startswith("random_"):
        toy = [*toy, "benchmark.subset=full"]  # a drawn handful has fewer
    code, said = command("run", *words, *toy, "limit=2", "benchmark.max_new_tokens=4", store)
    if code:
        return f"run ({code}): {said.strip().splitlines()[-1]}"
    code, said = command("table", store)
    if code or HOLE in said:
        return f"table ({code}): {said.count(HOLE)} holes"
    return "ok"


def _has_heads(jobs: list[plan.Job]) -> bool:
    return all("head_scores" in job.config["model"] for job in jobs)


def main(names: list[str]) -> int:
    """Check the named experiments, or all; returns the exit code."""
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names or experiments.known():
            started = time.monotonic()
            came = check(name, Path(folder))
            bad += not came.startswith("ok")
            print(f"{name:<22} {time.monotonic() - started:6.1f} s  {came}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
