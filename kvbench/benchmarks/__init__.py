"""Benchmarks: what a model is asked, and how its answers become numbers.

    >>> benchmark = kvbench.benchmarks.load(cfg)      # cfg: a resolved conf/benchmark/*.yaml as a plain dict
    >>> samples = benchmark.samples(limit=40)         # text exactly as lmms-eval prompts it, images lazily
    >>> scores = benchmark.score({0: "Paris", 7: "42"}, [0, 7])

Nothing here imports torch or lmms-eval until a benchmark is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvbench.benchmarks.base import Benchmark, Sample, Scores
from kvbench.errors import UserError

__all__ = ["Benchmark", "Sample", "Scores", "load"]

KINDS = ("lmms_eval", "documents", "longbench", "folder")


def load(cfg: Mapping[str, Any]) -> Benchmark:
    """The benchmark that a resolved ``conf/benchmark/*.yaml`` describes.

    Raises UserError when its data are missing, its ``kind`` is unknown, or it names no metric.
    """
    kind = cfg.get("kind")
    if kind not in KINDS:
        raise UserError(
            f"benchmark {cfg.get('name')!r} has the unknown kind {kind!r}: set kind to lmms_eval,"
            " longbench, documents or folder."
        )
    if not cfg.get("metric"):  # a store holds what names a cell, which its metric does not
        name = cfg.get("name")
        raise UserError(
            f"conf/benchmark has no {name}.yaml that names its metric: restore the file, with metric: NAME."
        )
    if kind == "lmms_eval":
        from kvbench.benchmarks.lmms import LmmsBenchmark

        return LmmsBenchmark(cfg)
    if kind == "folder":
        from kvbench.benchmarks.folder import FolderBenchmark

        return FolderBenchmark(cfg)
    if kind == "documents":
        from kvbench.benchmarks.documents import DocumentsBenchmark

        return DocumentsBenchmark(cfg)
    from kvbench.benchmarks.longbench import LongBenchmark

    return LongBenchmark(cfg)
