"""Micro sets: a handful of samples a benchmark, drawn here in the exact schema of the real data.

They carry any benchmark from config to score without a download: ``benchmark.data=micro``. Drawn on first
use into the cache, under a digest of the code that draws them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from kvbench.errors import UserError
from kvbench.methods.version import said
from kvbench.paths import cache_dir


def version() -> str:
    """Digest of what the code behind the sets says, comments and docstrings apart."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256("".join(map(said, files)).encode()).hexdigest()[:10]


def folder(name: str) -> Path:
    """Folder with SPLIT.parquet (and videos/) of a benchmark's micro set, drawn when missing.

    Raises UserError when there is none for this benchmark.
    """
    from kvbench.benchmarks.micro import pictures, questions, texts, videos

    makers = {**pictures.SETS, **questions.SETS, **videos.SETS, **texts.SETS}
    if name not in makers:
        raise UserError(f"benchmark {name} has no micro set: leave benchmark.data as it is.")
    target = cache_dir() / f"micro-{version()}" / name
    if target.is_dir():
        return target
    import datasets

    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=target.parent))
    split, rows = makers[name](made)
    datasets.Dataset.from_list(rows).to_parquet(str(made / f"{split}.parquet"))
    try:
        os.rename(made, target)
    except OSError:  # another process drew it first
        shutil.rmtree(made)
    return target
