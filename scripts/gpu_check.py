"""What only a GPU can show: exactness of the GPU path, and speed and memory at the true 7B shapes.

    python scripts/gpu_check.py [--out runs/bench/gpu_check.json] [--fast]

Needs no checkpoint: weights are random, shapes are those of the 7B models. Exactness is checked in float32
on a small model, where a token that differs is an error; in bfloat16 the sum's order depends on the batch,
so there the share of equal tokens is reported. Exit code 0 when every check holds, 1 when one fails, 2
without a GPU. Under 8 minutes on one GPU of the 80 GB class.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

SEVEN_B = ("weights=random", "size=full", "device=cuda", "dtype=bfloat16")
TOY = ("weights=random", "size=toy", "device=cuda", "dtype=float32")
METHODS = ("fullkv", "snapkv", "pyramidkv+mixkv", "adakv+ecokv", "snapkv+bacon", "sparsemm")


def exactness() -> dict[str, Any]:
    """Tokens on the GPU in float32: waves, late looks, branches alone, and the CPU's own, all equal."""
    from kvbench import engine
    from kvbench.bench import workload

    decoding = import_module("kvbench.engine.decode")  # the package's own `decode` is the function
    model = workload.adapter("qwen2_vl_7b", TOY)
    prompt = workload.random_prompt(model, 200)
    methods = workload.methods(METHODS, (48, 24), 8)
    workload.endless(model)

    def tokens(chosen: list, **settings: Any) -> list[list[int]]:
        return [a.tokens for a in engine.generate(model, prompt, chosen, max_new_tokens=40, **settings)]

    whole = tokens(methods)
    model.stop_ids = frozenset({whole[0][5], whole[3][11]})  # ends branches inside of an interval
    stopped = tokens(methods)
    usual = decoding.GPU_INTERVAL
    decoding.GPU_INTERVAL = 1
    every_step = tokens(methods)
    decoding.GPU_INTERVAL = usual
    waves = tokens(methods, max_branch_bytes=1)
    alone = [tokens([method])[0] for method in methods]
    host = workload.adapter("qwen2_vl_7b", (*TOY[:2], "device=cpu", "dtype=float32"))
    host.model.load_state_dict({name: tensor.cpu() for name, tensor in model.model.state_dict().items()})
    host.stop_ids = model.stop_ids
    prompt_host = workload.random_prompt(host, 200)
    on_cpu = [a.tokens for a in engine.generate(host, prompt_host, methods, max_new_tokens=40)]
    return {
        "cells": len(methods),
        "distinct_answers": len({tuple(answer) for answer in whole}),
        "ended_early": sum(len(answer) < 40 for answer in stopped),
        "check_late_looks_equal": stopped == every_step,
        "check_waves_equal": stopped == waves,
        "check_alone_equal": stopped == alone,
        "check_some_answers_differ": len({tuple(answer) for answer in whole}) > 2,
        "equal_to_cpu": sum(a == b for a, b in zip(stopped, on_cpu, strict=True)),
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
                    model, prompt, methods, max_new_tokens=4, max_branch_bytes=2**60, say=said.append
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


def grid(model: Any, fast: bool) -> list[dict[str, Any]]:
    """The 49 cells of table 1 against cells alone."""
    from kvbench.bench import grid as bench
    from kvbench.bench import workload

    methods = workload.methods(("fullkv", *workload.METHODS), (256, 128, 64), 32)
    prompts = [workload.random_prompt(model, length) for length in ((1200,) if fast else (1200, 4096))]
    return bench.rows(model, prompts, methods, new_tokens=32, single=4 if fast else 10)


def select(model: Any, fast: bool) -> list[dict[str, Any]]:
    """Selection against prefill."""
    from kvbench.bench import select as bench

    return [
        row for length in ((2048,) if fast else (2048, 8192)) for row in bench.rows(model, length, repeats=2)
    ]


def efficiency(model: Any, table: str, new_tokens: int) -> list[dict[str, Any]]:
    """A paper's table with fewer new tokens and one repeat."""
    from kvbench.bench import efficiency as bench
    from kvbench.bench import workload

    settings = bench.TABLES[table]
    methods = workload.methods(settings["methods"], [settings["budget"]], 32)
    prompt = workload.random_prompt(model, settings["length"])
    return bench.rows(model, [prompt], methods, new_tokens=new_tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/bench/gpu_check.json"))
    parser.add_argument("--fast", action="store_true", help="about two minutes: fewer sizes")
    given = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("gpu_check: torch sees no GPU, so there is nothing to check: run this on a machine with one.")
        return 2
    from kvbench.bench import report, workload
    from kvbench.store.files import pretty, write_atomic

    found: dict[str, Any] = {"machine": report.machine("cuda:0"), "fast": given.fast}

    def section(name: str, work: Callable[[], Any]) -> None:
        """Run, print and store one section; the others still run when it fails."""
        start = time.perf_counter()
        try:
            found[name] = work()
        except Exception as error:
            found[name] = {"check_ran": False, "error": f"{type(error).__name__}: {error}"[:500]}
            torch.cuda.empty_cache()
        found[f"{name}_seconds"] = round(time.perf_counter() - start, 1)
        result = found[name]
        print(f"{name} ({found[f'{name}_seconds']} s)", flush=True)
        if isinstance(result, list):
            report.show(result)
        else:
            print(json.dumps(result, indent=1), flush=True)
        write_atomic(given.out, pretty(found))

    section("exactness", exactness)
    model = workload.adapter("qwen2_vl_7b", SEVEN_B)
    workload.endless(model)
    section("grid", lambda: grid(model, given.fast))
    section("select", lambda: select(model, given.fast))
    section("ecokv_table5", lambda: efficiency(model, "ecokv_table5", 32 if given.fast else 128))
    section("out_of_memory", lambda: out_of_memory(model))
    if not given.fast:
        section("bacon_table5", lambda: efficiency(model, "bacon_table5", 64))
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
