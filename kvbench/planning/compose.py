"""Hydra, kept in one place: groups registered at run time, composition, and errors in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from kvbench import paths
from kvbench.benchmarks import catalogue
from kvbench.checks import suggest
from kvbench.errors import UserError
from kvbench.identity import revisions
from kvbench.methods import plugins, registry
from kvbench.planning.config import RunConfig

# Fields that take more than one word or number.
_FORMS = {
    "exclude": "a list of MODEL/METHOD patterns such as exclude=[embedded/sparsemm*], or []",
    "plugins": "a list of files such as plugins=[my_method.py]",
    "axes": "left to kvbench: write method=A,B budget=128,64",
    "decode": "set key by key, as decode.compile=true",
    "store": "one folder, as store=runs/NAME",
    "prompt": "one name, as prompt=default",
}

# Configs composed in the present session; they are read, never changed.
_cache: dict[tuple[bool, tuple[str, ...]], DictConfig] = {}


@dataclass
class CellSweeperConf:
    _target_: str = "hydra_plugins.kvbench.CellSweeper"
    params: dict[str, Any] = field(default_factory=dict)


@dataclass
class SlurmLauncherConf:
    _target_: str = "hydra_plugins.kvbench.SlurmLauncher"


def register() -> None:
    """Put into Hydra's ConfigStore what needs no file: the schema, the sweeper, the method groups.

    ``capacity/``, ``score/`` and ``refresh/`` come from the registry with their dataclass defaults.  Each
    method file of conf/method/ that has a score also exists as NAME+SCORE for every score.
    """
    revisions.register()
    plugins.installed()
    store = ConfigStore.instance()
    store.store(group="hydra/sweeper", name="kvbench", node=CellSweeperConf, provider="kvbench")
    store.store(group="hydra/launcher", name="kvbench_slurm", node=SlurmLauncherConf, provider="kvbench")
    store.store(name="schema", node=RunConfig)
    for kind in registry.KINDS:
        for name in registry.names(kind):
            defaults = {o.name: o.default for o in registry.options(kind, name) if not o.runtime}
            store.store(group=kind, name=name, node={"name": name, **defaults})
    for path in sorted((paths.conf_dir() / "method").glob("*.yaml")):
        if not _has_score(path):
            continue
        for score in registry.names("score"):
            defaults = [path.stem, {"override /score@score": score}, "_self_"]
            node = {"defaults": defaults, "name": f"{path.stem}+{score}"}
            store.store(group="method", name=f"{path.stem}+{score}", node=node)


def _has_score(path: Path) -> bool:
    """Whether a method's file takes its score from the group, so that another can stand in its place."""
    document = yaml.safe_load(path.read_text("utf-8")) or {}
    entries = [entry for entry in document.get("defaults", []) if isinstance(entry, dict)]
    groups = [str(group).removeprefix("override ").lstrip("/") for entry in entries for group in entry]
    return "score@score" in groups


def plug(overrides: list[str]) -> None:
    """Load the files that ``plugins=[FILE.py]`` names, before the groups of their methods are read.

    Raises UserError for a file that registers no method.
    """
    _plug_tasks(overrides)
    words = [word for word in overrides if word.lstrip("+").startswith("plugins=")]
    if not words:
        return
    files = OverridesParser.create().parse_override(words[-1]).value()
    files = [files] if isinstance(files, (str, QuotedString)) else files
    if plugins.load(getattr(file, "text", str(file)) for file in files):
        _cache.clear()
        if GlobalHydra.instance().is_initialized():
            register()


def _plug_tasks(overrides: list[str]) -> None:
    """Make tasks of lmms-eval that ``benchmark=`` names known as benchmarks, where conf/ has none so."""
    for word in overrides:
        key, _, value = word.partition("=")
        for name in value.split(",") if key == "benchmark" else ():
            file = paths.conf_dir() / "benchmark" / f"{name}.yaml"
            if not file.is_file() and name in catalogue.files():
                node = {"defaults": ["lmms", "_self_"], "task": name}
                ConfigStore.instance().store(group="benchmark", name=name, node=node)


@contextmanager
def session() -> Iterator[Any]:
    """Hydra over conf/; nested use, and use inside a Hydra job, share the one that exists."""
    if GlobalHydra.instance().is_initialized():
        yield GlobalHydra.instance().hydra
        return
    if not (paths.conf_dir() / "config.yaml").exists():
        raise UserError(f"{paths.conf_dir()} holds no config.yaml: install kvbench again.")
    register()
    _cache.clear()
    with initialize_config_dir(config_dir=str(paths.conf_dir()), job_name="kvbench", version_base="1.3"):
        yield GlobalHydra.instance().hydra


def compose(overrides: list[str], multirun: bool = False) -> DictConfig:
    """Compose conf/config.yaml with overrides, ``hydra`` node included; problems become a UserError."""
    with session() as hydra, sentences():
        key = (multirun, tuple(overrides))
        if key not in _cache:
            mode = RunMode.MULTIRUN if multirun else RunMode.RUN
            try:
                _cache[key] = hydra.config_loader.load_configuration("config", overrides, mode)
            except ValueError as error:  # a group that is given a number, say
                raise _composition(error) from error
        return _cache[key]


def choices(group: str) -> list[str]:
    """Names in a config group, from files and from the registry."""
    with session() as hydra:
        names = hydra.config_loader.get_group_options(group)
    return [name for name in names if not name.startswith("_")]  # _NAME: what others build on


def parse(overrides: list[str]) -> list[Override]:
    """Parse Hydra's override grammar; a string that does not parse becomes a UserError."""
    with session() as hydra, sentences():
        return OverridesParser.create(config_loader=hydra.config_loader).parse_overrides(overrides)


def plain(node: Any, resolve: bool) -> Any:
    """A config node as plain Python values."""
    with sentences():
        return OmegaConf.to_container(node, resolve=resolve)


@contextmanager
def sentences() -> Iterator[None]:
    """Turn Hydra's and OmegaConf's exceptions into one UserError sentence."""
    try:
        yield
    except MissingConfigException as error:
        raise _missing(error) from error
    except OverrideParseException as error:
        if ",," in str(error.override) or str(error.override).rstrip().endswith(","):
            raise UserError(
                f"{error.override!r} has a comma too many: take it away, or name a value after it."
            ) from error
        raise UserError(
            f"cannot read the override {error.override!r}: write KEY=VALUE, as in budget=128; a value with "
            """blanks or one of = # & ( ) ; { } is quoted twice, NAME="'VALUE'"."""
        ) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise _composition(error) from error


def _missing(error: MissingConfigException) -> UserError:
    found = re.search(r"Could not find '([^']+)/([^'/]*)'", str(error))
    if not found:
        return UserError(_first_line(error))
    group, name = found.groups()
    if not name:
        return UserError(f"{group}= names nothing: {suggest(name, choices(group))}")
    if group == "hydra/launcher":
        return UserError(f'launcher={name} is not installed: pip install "kvbench[slurm]".')
    return UserError(f"unknown {group} {name!r}: {suggest(name, choices(group))}")


def _said(error: BaseException | None) -> UserError | None:
    """The UserError behind what Hydra and OmegaConf made of it, as of a resolver."""
    while error is not None and not isinstance(error, UserError):
        error = error.__cause__ or error.__context__
    return error


def _composition(error: Exception) -> UserError:
    message = str(error)
    cause = error.__cause__
    if found := _said(error):
        return found
    if "Config group override must be" in message:
        return UserError(
            "a group (model, benchmark, method, refresh, launcher, tracking, experiment) takes a name: "
            "`kvbench list` shows them."
        )
    if isinstance(error, InterpolationResolutionError):
        name = re.search(r"[Ii]nterpolation key '([^']*)'", message)
        what = f"${{{name[1]}}}" if name else "${...}"
        return UserError(
            f"{what} names no key of the config: correct it, or quote it as in 'a\\{what}' to mean the "
            "characters themselves."
        )
    unknown = re.search(r"Could not override '([^']+)'", message)
    if unknown and type(cause).__name__ in ("ConfigAttributeError", "ConfigKeyError", "NoneType"):
        return unknown_key(unknown.group(1))
    merging = re.search(r"Error merging override (\S+)", message)
    if merging and cause is not None:
        key, _, value = merging.group(1).partition("=")
        kind = re.search(r"could not be converted to (\w+)|is not a valid (\w+)", str(cause))
        if kind:
            wanted = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
            wanted = wanted.get(kind.group(1) or kind.group(2), "text")
            return UserError(f"{key} must be {wanted}, not {value!r}: set {key}=VALUE.")
        if form := _FORMS.get(key):
            return UserError(f"{key} must be {form}, not {value!r}.")
        return UserError(f"cannot set {key}={value}: {_first_line(cause)}")
    group = re.search(r"Override (\S+?)=.* looks like a config group|Could not override '(\S+)'", message)
    if group:
        return unknown_key(group.group(1) or group.group(2))
    return UserError(_first_line(cause if cause is not None and not message else error))


def unknown_key(key: str, known: list[str] | None = None) -> UserError:
    """The sentence for a misspelt key."""
    if key == "profile":
        return UserError("profile= chooses among an experiment's models: name one, as in experiment=table1.")
    if key in _launcher_keys():
        return UserError(f"{key} is a setting of launcher=slurm: add that, or leave the key out.")
    if known is None:
        known = sorted({*RunConfig.__dataclass_fields__, "experiment", "profile"} - {"axes"})
        known += _launcher_keys()
        try:
            config = plain(compose([]), resolve=False)
            known += flat_keys({group: config[group] for group in ("model", "benchmark")})
        except UserError:
            pass  # the defaults do not compose either; the fields alone must do
    return UserError(f"unknown key {key!r}: {suggest(key, known)}")


def _launcher_keys() -> list[str]:
    """Settings of the launchers, of whichever file has them, as ``launcher.KEY``."""
    files = sorted((paths.conf_dir() / "launcher").glob("*.yaml"))
    return sorted({f"launcher.{key}" for path in files for key in OmegaConf.load(path).get("launcher", {})})


def flat_keys(config: dict[str, Any], prefix: str = "") -> list[str]:
    """Every key of a nested dict as dotted names."""
    keys: list[str] = []
    for key, value in config.items():
        keys.append(prefix + str(key))
        if isinstance(value, dict):
            keys += flat_keys(value, f"{prefix}{key}.")
    return keys


def _first_line(error: BaseException) -> str:
    return (
        next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__) + "."
    )
