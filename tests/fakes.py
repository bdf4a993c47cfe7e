"""A model, two benchmarks and an engine of a few lines, so that the runner can be tested in milliseconds.

Run as a program it is the ``kvbench`` command with these parts in place; the environment steers it:
FAKE_SLEEP seconds per sample, FAKE_FAIL="3:2,5:9" sample 3 fails twice and sample 5 nine times, FAKE_LOG a
file that gets one line per model load and per generated sample, FAKE_DATA a file that every picture needs.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

CONF = Path(__file__).parent / "conf"
SIZE, LAYERS, HEADS = 12, 3, 2
_tries: Counter[int] = Counter()


def log(line: str) -> None:
    if path := os.environ.get("FAKE_LOG"):
        with open(path, "a") as file:
            file.write(line + "\n")


def picture(index: int) -> list[str]:
    if path := os.environ.get("FAKE_DATA"):
        Path(path).read_bytes()
    return [f"picture {index}"]


class Adapter:
    model = SimpleNamespace(device="cpu", dtype="torch.float32")
    head_dim = 64

    def prepare(self, text: str, images: list) -> SimpleNamespace:
        return SimpleNamespace(text=text, images=images, length=200, fitted={})


class Benchmark:
    max_new_tokens = 4
    until: list[str] = []
    reasoning_tokens = 0
    about = "picture"
    order = list(range(SIZE))

    def clusters(self, indices: list[int]) -> dict[int, str]:
        return {index: f"picture {index}" for index in indices}

    def prepare(self, adapter: Adapter, text: str, images: list) -> SimpleNamespace:
        return adapter.prepare(text, images)

    def samples(self, limit: int | None) -> list[SimpleNamespace]:
        return self.at(sorted(self.order[:limit]))

    def at(self, indices: list[int]) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(
                id=f"q{i}", index=i, text=f"question {i}", images=lambda i=i: picture(i), then=None
            )
            for i in indices
        ]


def load_model(config: dict) -> Adapter:
    log("load")
    return Adapter()


def load_benchmark(config: dict) -> Benchmark:
    log("benchmark")
    return Benchmark()


def generate(
    adapter: Adapter, inputs: SimpleNamespace, methods: list, benchmark: Benchmark, trace: bool = False, **_
) -> list[SimpleNamespace]:
    index = int(inputs.text.split()[-1])
    assert inputs.images == [f"picture {index}"]
    time.sleep(float(os.environ.get("FAKE_SLEEP", "0")))
    failing = dict(item.split(":") for item in os.environ.get("FAKE_FAIL", "").split(",") if item)
    _tries[index] += 1
    if _tries[index] <= int(failing.get(str(index), 0)):
        raise RuntimeError(f"no answer to {index}")
    log(f"sample {index} {len(methods)}")
    answers = []
    for method in methods:
        name = f"{method.name} {method.budget} {index}"
        tokens = list(hashlib.sha256(name.encode()).digest()[:4])
        kept = [[method.budget or inputs.length] * HEADS for _ in range(LAYERS)]
        if method.name.startswith("adakv"):
            kept = [[method.budget + layer, method.budget - layer] for layer in range(LAYERS)]
        if getattr(method, "refresh", None) is not None:
            tokens[0] = sum(map(ord, repr(method.refresh).replace("offload=True", "offload=False"))) % 251
        answer = SimpleNamespace(
            text=f"{name} é\n", tokens=tokens, stopped="length", prompt_length=inputs.length, kept=kept
        )
        if trace:
            answer.trace = a_trace(len(tokens) - 1, index)
        answers.append(answer)
    return answers


def a_trace(steps: int, index: int):
    """A trace whose drift counts (step, layer) up from the sample's index."""
    import numpy

    from kvbench.store.trace import FIELDS, Trace

    values = numpy.zeros((steps, LAYERS, len(FIELDS)), numpy.float32)
    values[..., 0] = index + numpy.arange(steps * LAYERS).reshape(steps, LAYERS)
    return Trace.from_values(values, held=2)


def install(put: Callable[..., None] = setattr) -> None:
    """Put the fakes in place of the model, the benchmarks and the engine.

    ``put``: monkeypatch.setattr inside a test, so that later tests have the real ones again.
    """
    from kvbench.identity import provenance
    from kvbench.running import run

    # The checkout may change while tests run; the rest of the provenance stays as it is.
    put(provenance, "git_state", lambda folder: {"revision": "0" * 40, "dirty": False})
    for fake in (load_model, load_benchmark, generate):
        put(run, fake.__name__, fake)


def command(*arguments: str) -> list[str]:
    """Arguments of ``kvbench`` with the fake configs found and chosen; later words win."""
    name, *rest = arguments
    if name not in ("run", "plan"):
        return list(arguments)
    usual = [f"{key}={value}" for key, value in (("model", "fake"), ("benchmark", "fake_qa"))]
    usual = [word for word in usual if not any(given.startswith(word.split("=")[0] + "=") for given in rest)]
    return [name, f"hydra.searchpath=[file://{CONF}]", *usual, *rest]


def kvbench(*arguments: str) -> int:
    """The ``kvbench`` command with the fakes, in this process; returns its exit code."""
    from kvbench import cli

    _tries.clear()
    return cli.main(command(*arguments))


if __name__ == "__main__":
    install()
    sys.exit(kvbench(*sys.argv[1:]))
