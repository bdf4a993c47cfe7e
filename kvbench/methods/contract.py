"""What a score, a capacity and a refresh policy promise, checked where they give it back.

One that breaks its promise, or raises, is a MethodError that names it, its file and line, what it gave and
what is wanted. A UserError that it raises itself stands as it is, and memory that runs out is nobody's fault.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench import memory
from kvbench.errors import MethodError, UserError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from kvbench.engine.step import Step
    from kvbench.methods.method import Method
    from kvbench.methods.observation import View
    from kvbench.methods.refresh.base import Reselect

PACKAGE = Path(__file__).resolve().parents[1]


def capacity(method: Method, view: View) -> Tensor:
    """[L, H] int64 in [0, M]: how many candidates each head selects. Raises MethodError."""
    layers, heads, _ = view.observation.shape
    part, label = method.capacity, f"method {method.name}: {_label('capacity', method.capacity)}"
    each = method.budget - method.window
    given = {"scores": score(method, view, uniform(view, each))} if part.needs_scores else {}
    with blame(label, part.__call__):
        found = part(view, each, **given)
    fault = _shape(found, (layers, heads), "[layers, kv_heads]") or _whole(found)
    if fault is None and found.numel():
        low, high = int(found.min()), int(found.max())
        if low < 0 or high > view.candidates:
            fault = (
                f"counts from {low} to {high}, but each must lie in 0 to {view.candidates}, the candidates "
                "of a head"
            )
    refuse(label, part.__call__, fault)
    return found.long()


def uniform(view: View, selected: int) -> Tensor:
    """[L, H] int64: as many candidates of each head."""
    import torch

    return torch.full(view.observation.shape[:2], min(selected, view.candidates), dtype=torch.int64)


def score(method: Method, view: View, selected: Tensor) -> Tensor:
    """[L, H, M] finite numbers. `selected`: as `capacity` gave it. Raises MethodError."""
    layers, heads, _ = view.observation.shape
    part, label = method.score, f"method {method.name}: {_label('score', method.score)}"
    with blame(label, part.__call__):
        found = part(view, selected)
    fault = _shape(found, (layers, heads, view.candidates), "[layers, kv_heads, candidates]")
    refuse(label, part.__call__, fault or _real(found) or _finite(found))
    return found


def drift(policy: Reselect, step: Step) -> Tensor:
    """[B] how far each branch's selection has drifted; NaN is for the caller to see. Raises MethodError."""
    label = _label("refresh", policy)
    with blame(label, policy.drift):
        found = policy.drift(step)
    refuse(label, policy.drift, _shape(found, (len(step.query),), "[branches]") or _real(found))
    return found


def proposal(policy: Reselect, step: Step) -> Tensor:
    """[B, H, c] whole numbers; `unsound` says whether they are positions. Raises MethodError."""
    label = _label("refresh", policy)
    with blame(label, policy.propose):
        found = policy.propose(step)
    wanted = (*step.query.shape[:2], step.selected)
    fault = _shape(found, wanted, "[branches, kv_heads, selected]") or _whole(found)
    refuse(label, policy.propose, fault)
    return found


def unsound(positions: Tensor, count: int) -> Tensor:
    """bool [B]: whether positions [B, H, c] are anything but ascending and in [0, count). Does not wait."""
    rising = (positions[..., 1:] > positions[..., :-1]).all(-1)
    return ~(rising & (positions[..., 0] >= 0) & (positions[..., -1] < count)).all(-1)


def no_positions(policy: Reselect, count: int) -> MethodError:
    """The error of a branch whose policy was `unsound`, or whose drift was NaN."""
    file, line = _code(policy.propose)
    return MethodError(
        f"{_label('refresh', policy)} ({shown(file)}:{line}) returned a drift that is not finite, or entries "
        f"that are not ascending positions from 0 to {count - 1}: mend it, or leave it out."
    )


@contextmanager
def blame(label: str, call: Callable) -> Iterator[None]:
    """Turn what `call` raises inside the block into a MethodError that says where; `label`: what it is of."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if memory.ran_out(error):
            raise
        file = _code(call)[0]
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename == file] or list(frames)
        at = f"{shown(own[-1].filename)}:{own[-1].lineno}"
        raise MethodError(
            f"{label} raised {type(error).__name__} at {at} ({first_line(error)}): mend it, or leave it out."
        ) from error


def refuse(label: str, call: Callable, fault: str | None) -> None:
    """Raise the MethodError of a broken promise, if there is a fault: what was returned, what is wanted."""
    if fault is not None:
        file, line = _code(call)
        raise MethodError(f"{label} ({shown(file)}:{line}) returned {fault}: mend it, or leave it out.")


def _finite(found: Tensor) -> str | None:
    """The fault of a tensor with NaN or infinite entries."""
    bad = found.numel() - int(found.isfinite().sum())
    return f"{bad} NaN or infinite entries of {found.numel()}, but all must be finite" if bad else None


def _shape(found: Any, wanted: tuple[int, ...], axes: str) -> str | None:
    import torch

    if not isinstance(found, torch.Tensor):
        return f"{type(found).__name__}, but a tensor of shape {wanted} = {axes} is wanted"
    if tuple(found.shape) != wanted:
        return f"shape {tuple(found.shape)}, but {wanted} = {axes} is wanted"
    return None


def _real(found: Tensor) -> str | None:
    """The fault of numbers that have no order, or of truth values."""
    import torch

    if found.dtype == torch.bool or found.is_complex():
        return f"dtype {_dtype(found)}, but real numbers (such as float32) are wanted"
    return None


def _whole(found: Tensor) -> str | None:
    import torch

    if found.dtype == torch.bool or found.is_floating_point() or found.is_complex():
        return f"dtype {_dtype(found)}, but whole numbers (int64) are wanted"
    return None


def _dtype(found: Tensor) -> str:
    return str(found.dtype).removeprefix("torch.")


def _label(kind: str, part: Any) -> str:
    return f"{kind} `{getattr(part, 'name', type(part).__name__)}`"


def _code(call: Callable) -> tuple[str, int]:
    """(file, line) of a part's own function."""
    code = inspect.unwrap(call).__code__
    return code.co_filename, code.co_firstlineno


def shown(file: str) -> str:
    """A file as an error names it: from the package or the current folder on, else its name alone."""
    path = Path(file).resolve()
    for root in (PACKAGE.parent, Path.cwd()):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return path.name
