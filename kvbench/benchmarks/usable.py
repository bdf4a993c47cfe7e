"""Whether a benchmark's data are here and fit for the task code: one sentence for each way they are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvbench.errors import Unanswerable, UserError, first_line
from kvbench.support import hub


def flaw(what: str, doc: Mapping[str, Any], columns: Iterable[str]) -> str:
    """What a row lacks to be asked or scored, as a sentence; empty where nothing of ``columns`` is null."""
    lacking = [column for column in columns if _nothing(doc[column])]
    return f"{what} has no {' and no '.join(lacking)}: correct the row." if lacking else ""


def _nothing(value: Any) -> bool:
    """Null or NaN, or a list of nothing else."""
    values = value if isinstance(value, list) else [value]
    return all(one is None or one != one for one in values)


def refuse(sentence: str) -> list[Any]:
    """In place of a flawed sample's pictures."""
    raise Unanswerable(sentence)


def check_flaws(flaws: Mapping[int, str]) -> None:
    """Raise UserError where a sample that is to be scored has a flaw."""
    for sentence in flaws.values():
        raise UserError(f"{sentence[:-1]}, or leave it out with benchmark.unreadable=exclude.")


def check_columns(cfg: Mapping[str, Any], present: list[str]) -> None:
    """Raise UserError unless the data have the columns that the task code reads."""
    missing = [column for column in cfg.get("columns") or [] if column not in present]
    if missing:
        raise UserError(
            f"the data of benchmark {cfg['name']} ({cfg['data']}) have no column {missing[0]!r}, so"
            f" their schema is not the one kvbench knows ({', '.join(cfg['columns'])}): set"
            f" benchmark.revision to an older commit, or benchmark.data to a folder that has it."
        )


def check_schema(cfg: Mapping[str, Any], files: list[str]) -> None:
    """``check_columns`` from the files' own headers. Raises UserError for one that is no Parquet file."""
    if not cfg.get("columns"):
        return
    import pyarrow
    import pyarrow.parquet

    for file in files:
        try:
            present = pyarrow.parquet.read_schema(file).names
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise UserError(
                f"{file}, data of benchmark {cfg['name']}, is no Parquet file that can be read"
                f" ({first_line(error)}): fetch it again."
            ) from error
        check_columns(cfg, present)


def require_hub_data(cfg: Mapping[str, Any]) -> None:
    """Raise UserError in one sentence when a hub data set is neither cached nor reachable.

    lmms-eval would retry for a minute and end in a long traceback.
    """
    data = str(cfg["data"])
    from huggingface_hub import HfApi, constants

    have, wanted = hub.cached("datasets", data), cfg.get("revision")
    if have and (wanted is None or wanted in have):
        return
    reachable = False
    if not constants.HF_HUB_OFFLINE:
        try:
            HfApi().dataset_info(data, revision=wanted, timeout=5)
            reachable = True
        except Exception:  # any failure means the same to the user: no data
            reachable = False
    if not reachable and have:
        raise UserError(
            f"revision {wanted} of {data}, data of benchmark {cfg['name']}, is not here ({', '.join(have)}"
            f" is): set benchmark.revision to it, or run `kvbench fetch benchmark={cfg['name']}`."
        )
    if not reachable:
        raise UserError(
            f"benchmark {cfg['name']} needs the data set {data}, which is not here and cannot be fetched: run"
            f" `kvbench fetch benchmark={cfg['name']}` where there is a network, or set benchmark.data=FOLDER"
            " with its Parquet files."
        )


def unusable(cfg: Mapping[str, Any], error: Exception) -> UserError:
    """The sentence for data that are there and cannot be used."""
    from tenacity import RetryError

    if isinstance(error, RetryError):
        error = error.last_attempt.exception() or error
    if isinstance(error, UserError):
        return error
    if isinstance(error, ImportError):
        return UserError(f"benchmark {cfg['name']} needs a package ({first_line(error)}): install it.")
    if isinstance(error, KeyError) and error.args and error.args[0] in (cfg.get("columns") or []):
        return UserError(
            f"the data of benchmark {cfg['name']} ({cfg['data']}) have no column {error}, so their"
            " schema is not the one kvbench knows: set benchmark.revision to an older commit."
        )
    what = "cannot be read" if isinstance(error, OSError) else "cannot be loaded"
    return UserError(
        f"the data or first sample of benchmark {cfg['name']} {what} ({type(error).__name__}:"
        f" {first_line(error)}): fetch the data again, or correct benchmark.revision."
    )
