"""What the measurements run: models by name, table 1's methods, prompts of a length, peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvbench.errors import UserError

CAPACITIES = ("snapkv", "pyramidkv", "adakv", "sparsemm")
SCORES = ("", "+mixkv", "+ecokv", "+bacon")
METHODS = tuple(capacity + score for capacity in CAPACITIES for score in SCORES)


def config(group: str, name: str, settings: Sequence[str] = ()) -> dict[str, Any]:
    """A model's or benchmark's config as a run resolves it. Raises UserError with the nearest names.

    settings: KEY=VALUE over its defaults, as weights=random.
    """
    from kvbench.planning import compose

    for setting in settings:
        if "=" not in setting:
            raise UserError(f"--set takes KEY=VALUE such as weights=random, not {setting!r}.")
    overrides = [f"{group}={name}", *(f"{group}.{setting}" for setting in settings)]
    return compose.plain(compose.compose(overrides)[group], resolve=True)


def adapter(name: str, settings: Sequence[str] = ()) -> Any:
    """The model NAME with KEY=VALUE settings, e.g. weights=random size=full.

    A model without visual-head scores gets random ones, so that sparsemm can be timed.
    """
    import torch

    from kvbench import models

    loaded = models.load(config("model", name, settings))
    if loaded.head_scores is None:
        generator = torch.Generator().manual_seed(0)
        scores = torch.rand(loaded.layers, loaded.query_heads, generator=generator, dtype=torch.float64)
        loaded._head_scores = scores
    return loaded


def methods(names: Sequence[str], budgets: Sequence[int], window: int | None) -> list[Any]:
    """Every method at every budget; fullkv, which has no budget, once and first."""
    from kvbench.methods import build

    own = {"+ecokv": None}  # this score has a window of its own
    cells = [build({"name": "fullkv"}, None)] if "fullkv" in names else []
    for name in names:
        if name != "fullkv":
            width = next((w for score, w in own.items() if name.endswith(score)), window)
            cells += [build({"name": name, "window": width}, budget) for budget in budgets]
    return cells


def text_prompt(model: Any, length: int) -> Any:
    """Inputs of `length` tokens of real prose, for a model with a tokenizer."""
    from kvbench.benchmarks import documents

    texts = sorted((Path(documents.__file__).parent / "texts").glob("*.txt"))
    ids: list[int] = []
    for path in texts:
        ids += model.tokenizer.encode(path.read_text(encoding="utf-8"), add_special_tokens=False)
        if len(ids) >= length:
            return model.text_inputs(ids[:length])
    raise UserError(f"the texts have {len(ids)} tokens, fewer than the {length} asked for: lower --length.")


def random_prompt(model: Any, length: int, seed: int = 0) -> Any:
    """Inputs of `length` random tokens, none of them special."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return model.text_inputs(torch.randint(0, 256, (length,), generator=generator).tolist())


def endless(model: Any) -> None:
    """Let no token end an answer, so that every branch decodes as long as it may."""
    model.stop_ids = frozenset()


class Peak:
    """Peak memory since the last `reset`: of the GPU's allocator, else of the process (Linux)."""

    def __init__(self, device: Any):
        self.device = device

    def reset(self) -> None:
        """Start again from what is held now."""
        import gc

        gc.collect()
        if self.device.type == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats(self.device)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError as error:
            raise UserError(
                "peak memory needs Linux's /proc/self/clear_refs, which cannot be written here: use a GPU or "
                "a machine that allows it."
            ) from error

    def bytes(self) -> int:
        """The peak."""
        if self.device.type == "cuda":
            import torch

            return torch.cuda.max_memory_allocated(self.device)
        status = Path("/proc/self/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
