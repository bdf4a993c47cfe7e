"""What only a GPU can show: exactness of the GPU path, and speed and memory at the true 7B shapes.

    python scripts/gpu_check.py [--out runs/bench/gpu_check.json] [--fast]
    python scripts/gpu_check.py --device cpu --size toy     # in miniature, to test the script itself

Needs no checkpoint: weights are random, shapes are those of the 7B models. Exactness is checked in float32
on a small model, where a token that differs is an error; in bfloat16 the sum's order depends on the batch,
so there the share of equal tokens is reported. Sections whose turn comes after seven minutes are listed in
`not_run`. Exit code 0 when every check holds, 1 when one fails, 2 without the device. Under 8 minutes on one
GPU of the 80 GB class.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

DEADLINE = 420  # seconds after which no section begins
METHODS = ("fullkv", "snapkv", "pyramidkv+mixkv", "adakv+ecokv", "snapkv+bacon", "sparsemm")


@dataclass(frozen=True)
class Sizes:
    """How large the measurements are."""

    model: tuple[str, ...] = ("weights=random", "size=full", "dtype=bfloat16")
    window: int = 32
    budgets: tuple[int, ...] = (256, 128, 64)
    grid: tuple[int, ...] = (1200, 4096)  # prompt tokens
    single: int = 10  # cells of the grid that run alone as well
    paths: int = 4096
    path_tokens: int = 67  # new tokens
    select: tuple[int, ...] = (2048, 8192)
    tables: tuple[tuple[str, int], ...] = (("ecokv_table5", 128), ("bacon_table5", 64))  # new tokens
    table_length: int | None = None  # None: the paper's


FULL = Sizes()
FAST = Sizes(grid=(1200,), single=4, select=(2048,), tables=(("ecokv_table5", 32),))
TOY = Sizes(
    model=("weights=random", "size=toy", "dtype=float32"), window=8, budgets=(24, 16), grid=(90,), single=2,
    paths=120, path_tokens=7, select=(100,), tables=(("ecokv_table5", 3),), table_length=140,
)  # fmt: skip


def exactness(device: str) -> dict[str, Any]:
    """Tokens in float32: waves, late looks, branches alone, every path, and the CPU's own, all equal."""
    from kvbench import engine
    from kvbench.bench import workload

    decoding = import_module("kvbench.engine.decode")  # the package's own `decode` is the function
    toy = ("weights=random", "size=toy", "dtype=float32")
    model = workload.adapter("qwen2_vl_7b", (*toy, f"device={device}"))
    prompt = workload.random_prompt(model, 200)
    methods = workload.methods(METHODS, (48, 24), 8)
    workload.endless(model)

    def tokens(chosen: list, **settings: Any) -> list[list[int]]:
        return [a.tokens for a in engine.generate(model, prompt, chosen, max_new_tokens=40, **settings)]

    whole = tokens(methods)
    model.stop_ids = frozenset({whole[0][5], whole[3][11]})  # ends branches inside of an interval
    stopped = tokens(methods, cache="compact")
    found = {"late_looks": [], "every_step": []}
    usual = decoding.GPU_INTERVAL, decoding.CPU_INTERVAL
    for name, interval in (("late_looks", 8), ("every_step", 1)):
        decoding.GPU_INTERVAL = decoding.CPU_INTERVAL = interval
        found[name] = tokens(methods, cache="compact")
    decoding.GPU_INTERVAL, decoding.CPU_INTERVAL = usual
    found["waves"] = tokens(methods, max_branch_bytes=1)
    found["alone"] = [tokens([method])[0] for method in methods]
    found["ragged"] = tokens(methods, cache="ragged")
    found["ragged_waves"] = tokens(methods, cache="ragged", max_branch_bytes=1)
    found["compiled"] = tokens(methods, compiled=True)
    host = workload.adapter("qwen2_vl_7b", (*toy, "device=cpu"))
    host.model.load_state_dict({name: tensor.cpu() for name, tensor in model.model.state_dict().items()})
    host.stop_ids = model.stop_ids
    prompt_host = workload.random_prompt(host, 200)
    on_cpu = [a.tokens for a in engine.generate(host, prompt_host, methods, max_new_tokens=40)]
    return {
        "cells": len(methods),
        "distinct_answers": len({tuple(answer) for answer in whole}),
        "ended_early": sum(len(answer) < 40 for answer in stopped),
        **{f"check_{name}_equal": answers == stopped for name, answers in found.items()},
        "check_some_answers_differ": len({tuple(answer) for answer in whole}) > 2,
        "check_some_end_early": any(len(answer) < 40 for answer in stopped),
        "equal_to_cpu": sum(a == b for a, b in zip(stopped, on_cpu, strict=True)),
    }


class Steps:
    """Times the steps of a decode, from the second on, and counts how often the host waited in them."""

    def __init__(self, device: str, last: int):
        self.device, self.last = device, last
        self.marks: list[tuple[float, int]] = []  # (seconds, waits so far) at the second and the last step

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block the first decode that begins is measured."""
        from kvbench.engine.cache import CompactCache
        from kvbench.engine.ragged import RaggedCache

        with contextlib.ExitStack() as stack:
            caught = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            for kind in (CompactCache, RaggedCache):
                stack.callback(setattr, kind, "advance", kind.advance)
                kind.advance = self._noting(kind.advance, caught)
            if self.device == "cuda":
                import torch

                torch.cuda.set_sync_debug_mode("warn")
                stack.callback(torch.cuda.set_sync_debug_mode, "default")
            yield

    def _noting(self, advance: Callable[[Any], None], caught: list) -> Callable[[Any], None]:
        def noted(cache: Any) -> None:
            advance(cache)
            if cache.tail in (2, self.last):
                waits = sum("synchroniz" in str(warning.message) for warning in caught)
                if self.device == "cuda":
                    import torch

                    torch.cuda.synchronize()
                self.marks.append((time.perf_counter(), waits))

        return noted

    @property
    def seconds(self) -> float:
        """Of a step."""
        return (self.marks[1][0] - self.marks[0][0]) / (self.last - 2)

    @property
    def waits(self) -> float | None:
        """Per step; None on the CPU, which waits for nothing."""
        if self.device == "cpu":
            return None
        return (self.marks[1][1] - self.marks[0][1]) / (self.last - 2)


def paths(model: Any, sizes: Sizes) -> list[dict[str, Any]]:
    """The ways to decode the grid: tokens per second, the host's waits, and tokens unlike the first row's.

    Each way runs twice: `first_s` is the first decode, which compiles where that is asked for; the rest is
    of the second. All branches must fit into memory at once.
    """
    from kvbench import engine
    from kvbench.bench import workload
    from kvbench.engine import flash

    device, dtype = model.device.type, next(model.model.parameters()).dtype
    prompt = workload.random_prompt(model, sizes.paths)
    methods = workload.methods(("fullkv", *workload.METHODS), sizes.budgets, sizes.window)
    installed = flash.kernel
    there = flash.usable(model.device, dtype, model.head_dim)
    ways = [("compact", {"cache": "compact"}, False), ("ragged", {"cache": "ragged"}, False)]
    ways += [("ragged + flash", {"cache": "ragged"}, True)] if there else []
    ways += [("compiled + flash" if there else "compiled", {"compiled": True}, there)]
    peak = workload.Peak(model.device)
    measured, first = [], None
    for name, settings, with_flash in ways:
        laps: list[dict[str, float]] = [{}, {}]
        steps = Steps(device, sizes.path_tokens - 1)
        settings = {**settings, "max_new_tokens": sizes.path_tokens, "max_branch_bytes": 2**60}
        flash.kernel = installed if with_flash else (lambda: None)
        try:
            engine.generate(model, prompt, methods, seconds=laps[0], **settings)
            peak.reset()
            with steps.watched():
                answers = engine.generate(model, prompt, methods, seconds=laps[1], **settings)
        finally:
            flash.kernel = installed
        tokens = [answer.tokens for answer in answers]
        first = tokens if first is None else first
        measured.append(
            {
                "path": name,
                "cells": len(methods),
                "tokens_per_s": len(methods) / steps.seconds,
                "step_ms": 1000 * steps.seconds,
                "first_s": laps[0]["decode"],
                "decode_s": laps[1]["decode"],
                "peak_GiB": peak.bytes() / 2**30,
                "waits_per_step": steps.waits,
                "answers_unlike": sum(a != b for a, b in zip(tokens, first, strict=True)),
                "first_unlike": min(map(_agree, tokens, first)),
            }
        )
    return measured


def _agree(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """How many tokens two answers have in common from their start."""
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


def path_checks(rows: list[dict[str, Any]], exact: bool) -> dict[str, Any]:
    """What must hold of the paths. exact: the tokens are equal as well, as in float32."""
    waits = [row["waits_per_step"] for row in rows if row["waits_per_step"] is not None]
    checks: dict[str, Any] = {"check_looks_only_every_few_steps": all(w <= 0.2 for w in waits)}
    if exact:
        checks["check_paths_equal"] = not any(row["answers_unlike"] for row in rows)
    return checks


def prefill_memory(model: Any, length: int) -> dict[str, Any]:
    """Whether prefill holds no N x N matrix: its peak grows by less than the attention of one layer would."""
    from kvbench import engine
    from kvbench.bench import workload

    peak = workload.Peak(model.device)
    used = {}
    for tokens in (length // 2, length):
        prompt = workload.random_prompt(model, tokens)
        peak.reset()
        before = peak.bytes()
        engine.prefill(model, prompt, window=32)
        used[tokens] = peak.bytes() - before
    matrix = model.query_heads * length**2 * next(model.model.parameters()).element_size()
    return {
        **{f"GiB_at_{tokens}": value / 2**30 for tokens, value in used.items()},
        "attention_matrix_GiB": matrix / 2**30,
        "check_no_attention_matrix": used[length] < matrix,
    }


def out_of_memory(model: Any) -> dict[str, Any]:
    """A real out-of-memory error: the device is capped so that the branches do not fit at once."""
    import torch

    from kvbench import engine
    from kvbench.bench import workload

    prompt = workload.random_prompt(model, 8192)
    methods = workload.methods(("snapkv", "pyramidkv", "adakv", "snapkv+bacon"), (4096, 4000), 32)
    expected = [a.tokens for a in engine.generate(model, prompt, methods[:1], max_new_tokens=4)]
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    said: list[str] = []
    base = torch.cuda.memory_allocated() / total
    answers = None
    try:
        for extra in (2.0, 2.5, 3.0, 4.0):  # GiB: prefill needs some of it, the branches more
            said.clear()
            torch.cuda.set_per_process_memory_fraction(min(1.0, base + extra * 2**30 / total))
            try:  # the default limit would prevent the error, so it is lifted
                answers = engine.generate(
                    model, prompt, methods, max_new_tokens=4, max_branch_bytes=2**60, log=said.append
                )
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
                continue
            break
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {
        "reports": list(said),
        "check_answered": answers is not None,
        "check_reported_and_halved": bool(said),
        "first_equal": answers is not None and answers[0].tokens == expected[0],
    }


def grid(model: Any, sizes: Sizes) -> list[dict[str, Any]]:
    """The cells of table 1 against cells alone."""
    from kvbench.bench import grid as bench
    from kvbench.bench import workload

    methods = workload.methods(("fullkv", *workload.METHODS), sizes.budgets, sizes.window)
    prompts = [workload.random_prompt(model, length) for length in sizes.grid]
    return bench.rows(model, prompts, methods, new_tokens=max(4, sizes.window), single=sizes.single)


def select(model: Any, sizes: Sizes) -> list[dict[str, Any]]:
    """Selection against prefill."""
    from kvbench.bench import select as bench

    settings = {"window": sizes.window, "budgets": sizes.budgets[-1:], "repeats": 2}
    return [row for length in sizes.select for row in bench.rows(model, length, **settings)]


def efficiency(model: Any, table: str, new_tokens: int, sizes: Sizes) -> list[dict[str, Any]]:
    """A paper's table with fewer new tokens and one repeat."""
    from kvbench.bench import efficiency as bench
    from kvbench.bench import workload

    settings = bench.TABLES[table]
    methods = workload.methods(settings["methods"], [settings["budget"]], sizes.window)
    prompt = workload.random_prompt(model, sizes.table_length or settings["length"])
    return bench.rows(model, [prompt], methods, new_tokens=new_tokens)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/bench/gpu_check.json"))
    parser.add_argument("--fast", action="store_true", help="about two minutes: fewer sizes")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=("full", "toy"), default="full")
    given = parser.parse_args(arguments)
    import torch

    if given.device == "cuda" and not torch.cuda.is_available():
        print("gpu_check: torch sees no GPU, so there is nothing to check: run this on a machine with one.")
        return 2
    from kvbench.bench import report, workload
    from kvbench.store.files import pretty, write_atomic

    sizes = TOY if given.size == "toy" else FAST if given.fast else FULL
    on_gpu = given.device == "cuda"
    machine = report.machine("cuda:0" if on_gpu else "cpu")
    found: dict[str, Any] = {"machine": machine, "size": given.size, "fast": given.fast, "not_run": []}
    begun = time.perf_counter()

    def section(name: str, work: Callable[[], Any]) -> None:
        """Run, print and store one section; the others still run when it fails."""
        start = time.perf_counter()
        if start - begun > DEADLINE:
            found["not_run"].append(name)
            return
        try:
            found[name] = work()
        except Exception as error:
            found[name] = {"check_ran": False, "error": f"{type(error).__name__}: {error}"[:500]}
            if on_gpu:
                torch.cuda.empty_cache()
        found[f"{name}_seconds"] = round(time.perf_counter() - start, 1)
        result = found[name]
        print(f"{name} ({found[f'{name}_seconds']} s)", flush=True)
        if isinstance(result, list):
            report.show(result)
        else:
            print(json.dumps(result, indent=1), flush=True)
        write_atomic(given.out, pretty(found))

    section("exactness", lambda: exactness(given.device))
    model = workload.adapter("qwen2_vl_7b", (*sizes.model, f"device={given.device}"))
    workload.endless(model)
    section("grid", lambda: grid(model, sizes))
    section("paths", lambda: paths(model, sizes))
    if isinstance(found.get("paths"), list):
        exact = sizes.model[-1] == "dtype=float32"
        section("path_checks", lambda: path_checks(found["paths"], exact))
    section("select", lambda: select(model, sizes))
    if on_gpu and given.size == "full":  # there is no such peak and no such cap without a GPU's allocator
        section("prefill_memory", lambda: prefill_memory(model, 8192))
        section("out_of_memory", lambda: out_of_memory(model))
    for table, new_tokens in sizes.tables:
        section(table, lambda table=table, new=new_tokens: efficiency(model, table, new, sizes))
    found["seconds"] = round(time.perf_counter() - begun, 1)
    write_atomic(given.out, pretty(found))
    failed = [
        f"{name}.{check}"
        for name, result in found.items()
        if isinstance(result, dict)
        for check, held in result.items()
        if check.startswith("check_") and not held
    ]
    print(f"wrote {given.out}: " + (f"FAILED {', '.join(failed)}" if failed else "every check holds"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
