"""Command lines: what the commands share, and mistakes answered in one sentence."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from kvbench.checks import check_whole
from kvbench.errors import UserError
from kvbench.rendering import FORMATS

EXAMPLES = """examples:
  kvbench run model=embedded benchmark=docqa_mini method=snapkv budget=64 limit=20
  kvbench run -m benchmark=docqa_mini,textqa_mini method=fullkv,snapkv,snapkv+bacon budget=128,64 limit=9
  kvbench run experiment=table1
  kvbench table store=runs/table1

exit codes: 0 all done, 1 samples failed or are missing, 2 a mistake in the command or its surroundings,
75 stopped by SIGTERM or SIGUSR1: the same command continues, as it does after Ctrl-C (130) or a crash"""

OVERRIDES = """overrides are Hydra's KEY=VALUE; with -m a value may be a list A,B,C:
  one job each: model, benchmark, prompt, seed, shard
  cells that share a job's prefill: method, budget, method.window, method.score.OPTION, method.capacity.OPTION
    and refresh, refresh.OPTION, refresh.POLICY.OPTION (of that policy alone)
  for all: limit, store, shards, retries, fail_fast, launcher, sync, trace, offload, max_branch_bytes,
    decode.compile, decode.invariant, exclude, tracking, plugins=[FILE.py] (methods of your own)
  benchmark.unreadable=stop|exclude: a sample that cannot be answered (no picture, too long) leaves cells
    without a score (stop, the default), or is left out of all cells, as the table says
A method is fullkv, CAPACITY or CAPACITY+SCORE; `kvbench list methods` names them and their options."""


class Parser(argparse.ArgumentParser):
    """argparse that answers mistakes with one sentence and the nearest names."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("epilog", "An option --NAME VALUE can be written NAME=VALUE.")
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`.")

    def known(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse, options anywhere among the words; an unknown one is a UserError with the nearest.

        An option may be written as a setting too: ``limit=3``, ``budgets=128,64``, ``exact=true``.
        """
        words = [word for argument in arguments for word in self._flag(argument)]
        namespace, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            from kvbench.checks import suggest

            options = [option for action in self._actions for option in action.option_strings]
            raise UserError(f"`{self.prog}` has no option {unknown[0]!r}: {suggest(unknown[0], options)}")
        return namespace

    def _flag(self, word: str) -> list[str]:
        """A word KEY=VALUE as the option --KEY, where the command has it; any other word as it is."""
        key, equals, value = word.partition("=")
        action = self._option_string_actions.get(f"--{key.replace('_', '-')}")
        if not equals or action is None:
            return [word]
        if action.nargs == 0:
            if value not in ("true", "false"):
                self.error(f"{key} must be true or false, not {value!r}")
            return [action.option_strings[0]] if value == "true" else []
        many = value.split(",") if action.nargs == "+" else [value]
        return [action.option_strings[-1], *many]


def sweep_parser(name: str, description: str) -> Parser:
    parser = Parser(
        prog=f"kvbench {name}",
        description=description,
        epilog=f"{OVERRIDES}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-m", "--multirun", action="store_true", help="let values be lists and run all combinations"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="what to run")
    return parser


def store_parser(name: str, description: str, usual: str = "runs/default") -> Parser:
    parser = Parser(prog=f"kvbench {name}", description=description)
    parser.add_argument("settings", nargs="*", metavar="store=DIR", help=f"the store (default {usual})")
    return parser


def add_format(parser: Parser, usual: str = "text") -> None:
    """``--format``, with the same choices in every command that prints a table."""
    parser.add_argument("--format", choices=FORMATS, default=usual, help=f"(default: {usual})")


def store_settings(words: list[str], usual: dict[str, str]) -> dict[str, str]:
    """KEY=VALUE words over defaults; a bare word is the store."""
    from kvbench.checks import suggest

    settings = dict(usual)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            key, value = "store", word
        if key not in settings:
            raise UserError(f"unknown key {key!r}: {suggest(key, settings)}")
        settings[key] = value
    if not Path(settings["store"]).is_dir():
        raise UserError(
            f"there is no store at {settings['store']}: name one with store=DIR, or `kvbench run` first."
        )
    return settings


def whole(name: str, text: str, least: int) -> int:
    """A setting's text as an int; UserError for anything but ASCII digits, or for one below ``least``."""
    known = text.isascii() and text.isdigit()
    return check_whole(name, int(text) if known else text, least)


def resolved(overrides: list[str], every: bool = True) -> dict[str, list[dict[str, Any]]]:
    """Resolved configs of the models and benchmarks that overrides name, each a list A,B,C.

    A group that is not named: all of it when nothing else is (and ``every``), otherwise none. Other
    overrides (benchmark.data=...) apply to all. With experiment=NAME: those of its jobs. Raises UserError
    for unknown names and keys.
    """
    from kvbench.planning import compose, plan, shapes

    compose.plug(overrides)
    if any(word.startswith("experiment=") for word in overrides):
        found: dict[str, dict[str, Any]] = {"model": {}, "benchmark": {}}
        for job in plan.jobs(overrides):
            for group, by_name in found.items():
                by_name.setdefault(job.config[group]["name"], job.config[group])
        return {group: list(by_name.values()) for group, by_name in found.items()}
    named: dict[str, list[str]] = {"model": [], "benchmark": []}
    others = []
    for word in overrides:
        key, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"cannot read {word!r}: write KEY=VALUE, as in benchmark=docvqa.")
        if key in named:
            named[key] = value.split(",")
        else:
            others.append(word)
    chosen: dict[str, list[dict[str, Any]]] = {}
    with compose.session():
        if every and not any(named.values()):
            named = {group: compose.choices(group) for group in named}
        for group, names in named.items():
            composed = [compose.compose([f"{group}={name}", *others]) for name in names]
            chosen[group] = [compose.plain(config[group], resolve=True) for config in composed]
            for config in chosen[group]:
                shapes.check(group, config)
    return chosen
