"""``kvbench new``: a file of your own to begin with."""

from __future__ import annotations

import re
from pathlib import Path

from kvbench.commands import DONE
from kvbench.errors import UserError
from kvbench.planning.parsing import Parser

METHOD = '''"""{title}: say here what it keeps, and from which paper (section, equation) it is."""

from dataclasses import dataclass

from kvbench.methods.base import Score
from kvbench.methods.registry import option, score


@score("{name}", line="attention of the window, times the keys' norm", source="one's own")
@dataclass(frozen=True)
class {title}(Score):
    power: float = option(1.0, "how much the norm counts", minimum=0)

    def __call__(self, view, selected):
        """[layers, kv_heads, candidates]: the highest scores are kept, beside the observation window.

        view.b: attention of the window's queries, pooled, [layers, kv_heads, candidates].
        view.observation: keys and values [layers, kv_heads, N, d], window_queries, visual_mask [N].
        """
        keys = view.observation.keys[:, :, : view.candidates]
        return view.b * keys.float().norm(dim=-1) ** self.power
'''
TEST = '''"""{title} keeps the budget, the window, and what it scores highest."""

from pathlib import Path

import torch

import kvbench
from kvbench.methods import plugins

plugins.load([Path(__file__).with_name("{name}.py")])


def test_it_keeps_the_budget_and_the_window():
    keys, queries = torch.randn(2, 2, 60, 8), torch.randn(2, 4, 4, 8)
    kept = kvbench.select(keys, keys, queries, method="snapkv+{name}", budget=16, window=4)
    for head in [head.tolist() for layer in kept for head in layer]:
        assert len(head) == 16 and head[-4:] == [56, 57, 58, 59]


def test_a_large_key_is_kept():
    keys, queries = torch.rand(1, 1, 60, 8) + 0.1, torch.ones(1, 1, 4, 8)
    keys[..., 7, :] = 50.0
    assert 7 in kvbench.select(keys, keys, queries, method="snapkv+{name}", budget=8, window=4)[0][0].tolist()
'''


BENCHMARK = """# Questions of {folder}.
defaults:
  - folder
  - _self_
name: {name}
data: {folder}
metric: {metric}
"""


def main(arguments: list[str]) -> int:
    parser = Parser(prog="kvbench new", description="Write a file of your own to begin with.")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="method NAME | benchmark DIR",
        help="a score, in NAME.py of this folder, and its test; or the config of a folder of questions",
    )
    parser.add_argument("--metric", default="anls", help="of the benchmark (default: anls)")
    options = parser.known(arguments)
    kind, *names = options.words or [""]
    if kind not in ("method", "benchmark") or len(names) != 1:
        raise UserError("name what to write: kvbench new method NAME, or kvbench new benchmark DIR.")
    return _method(names[0]) if kind == "method" else _benchmark(Path(names[0]), options.metric)


def _benchmark(folder: Path, metric: str) -> int:
    from kvbench.benchmarks.folder import FolderBenchmark
    from kvbench.paths import conf_dir

    name = re.sub(r"[^a-z0-9]+", "_", folder.resolve().name.lower()).strip("_")
    file = conf_dir() / "benchmark" / f"{name}.yaml"
    if file.exists():
        raise UserError(f"{file} is there already: rename {folder}.")
    config = {"name": name, "data": str(folder), "metric": metric, "max_new_tokens": 64}
    count = FolderBenchmark(config).size()
    file.write_text(BENCHMARK.format(folder=folder.resolve(), name=name, metric=metric), encoding="utf-8")
    print(f"wrote {file}, {count} questions:")
    print(f"  kvbench run -m benchmark={name} method=fullkv,snapkv budget=64 limit=10 store=runs/{name}")
    return DONE


def _method(name: str) -> int:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(f"{name!r} is no name for a method: use small letters, digits and _, as in my_score.")
    from kvbench.methods import registry

    if name in registry.names("score"):
        raise UserError(f"kvbench has a score {name} already: choose another name.")
    files = {Path(f"{name}.py"): METHOD, Path(f"test_{name}.py"): TEST}
    for path in files:
        if path.exists():
            raise UserError(f"{path} is there already: choose another name, or another folder.")
    for path, text in files.items():
        title = name.title().replace("_", "")
        path.write_text(text.replace("{name}", name).replace("{title}", title), encoding="utf-8")
    print(f"wrote {name}.py and test_{name}.py; to test it and to measure it:")
    print(f"  pytest test_{name}.py")
    sweep = f"method=snapkv,snapkv+{name} budget=64 limit=10 plugins=[{name}.py] store=runs/{name}"
    print(f"  kvbench run -m {sweep}")
    return DONE
