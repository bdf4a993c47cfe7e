"""Trains the embedded model's tower and adapter: ``make embedded`` or ``python scripts/embedded/train.py``.

Two stages that do not need one another: the *adapter* (LoRA on the language model, which reads pages as the
token embeddings that a perfect tower would give) and the *tower* (a classifier of tiles). Both are seeded,
write a checkpoint every few minutes into the cache folder and go on from it when they are started again. At
the end the held-out figures are measured and written into the card beside the weights.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import lessons
from kvbench.embedded import draw, load, pages, tower
from kvbench.embedded import vocabulary as V
from kvbench.paths import cache_dir

SEED = 7
ADAPTER = {"steps": 340, "pages": 2, "rank": 8, "alpha": 16, "lr": 1e-3, "warmup": 20}
TOWER = {"steps": 1200, "drills": 2, "pages": 2, "lr": 3e-3, "warmup": 50}
CHECK_EVERY, CHECKPOINT_SECONDS = 65, 120


def rate(step: int, plan: dict) -> float:
    """Learning rate: linear warm-up, then a cosine down to a twentieth."""
    if step < plan["warmup"]:
        return plan["lr"] * (step + 1) / plan["warmup"]
    done = (step - plan["warmup"]) / max(1, plan["steps"] - plan["warmup"])
    return plan["lr"] * (0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * done)))


def _save(state: dict, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


# ----------------------------------------------------------------------------------------------------------
# adapter


def lesson_logits(model, lesson: lessons.Lesson) -> Tensor:
    """Logits [targets, vocabulary] where the lesson asks for them."""
    bias = torch.zeros(lesson.mask.shape, dtype=torch.bfloat16).masked_fill_(~lesson.mask, float("-inf"))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(
            input_ids=lesson.ids[None],
            attention_mask=bias[None, None],
            position_ids=lesson.positions[None],
            use_cache=False,
        ).last_hidden_state
        return model.lm_head(hidden[0, lesson.where]).float()


@torch.no_grad()
def check_adapter(model, words, count: int = 3) -> dict[str, float]:
    """Held-out figures with the right answer fed in: share of answers without a wrong token, per task.

    An answer whose every token is the most likely one is the answer greedy decoding gives. Long texts: share
    of tokens.
    """
    right: dict[str, list[float]] = {}
    for kind in pages.KINDS:
        for seed in range(count):
            for light in (False, True):
                if light and seed:
                    continue
                lesson = lessons.draw_lesson(words, 10_000 + seed, test=True, kind=kind, light=light)
                hit = (lesson_logits(model, lesson).argmax(-1) == lesson.targets).float()
                for task, first, last in lesson.segments:
                    got = hit[first:last]
                    short = task not in ("textcaps", "detailcaps")
                    right.setdefault(task, []).append(float(got.all()) if short else float(got.mean()))
    return {task: round(float(np.mean(values)), 4) for task, values in right.items()}


def train_adapter(out: Path, state_file: Path, plan: dict = ADAPTER) -> dict:
    """LoRA on q, k, v, o; the frozen model in bfloat16, the adapter in float32. Returns the curve."""
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    torch.manual_seed(SEED)
    words = load.tokenizer()
    text = load.base(torch.bfloat16)
    config = LoraConfig(
        r=plan["rank"],
        lora_alpha=plan["alpha"],
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
    )
    model = get_peft_model(text, config)
    learnt = [p for p in model.parameters() if p.requires_grad]
    for p in learnt:
        p.data = p.data.float()
    optimiser = torch.optim.AdamW(learnt, lr=plan["lr"], weight_decay=0.0, betas=(0.9, 0.98))
    start, seconds, curve = 0, 0.0, []
    if state_file.exists():
        state = torch.load(state_file, weights_only=False)
        set_peft_model_state_dict(model, state["adapter"])
        optimiser.load_state_dict(state["optimiser"])
        start, seconds, curve = state["step"], state["seconds"], state["curve"]
    inner = model.get_base_model()
    began, saved, losses = time.time(), time.time(), []

    def keep(step: int) -> None:
        _save(
            {
                "adapter": get_peft_model_state_dict(model),
                "optimiser": optimiser.state_dict(),
                "step": step,
                "seconds": seconds + time.time() - began,
                "curve": curve,
            },
            state_file,
        )

    for step in range(start, plan["steps"]):
        for group in optimiser.param_groups:
            group["lr"] = rate(step, plan)
        for k in range(plan["pages"]):
            lesson = lessons.draw_lesson(words, step * plan["pages"] + k)
            loss = _balanced(lesson_logits(inner, lesson), lesson) / plan["pages"]
            loss.backward()
            losses.append(float(loss) * plan["pages"])
        torch.nn.utils.clip_grad_norm_(learnt, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if (step + 1) % 10 == 0:
            print(
                f"adapter {step + 1}/{plan['steps']} loss {np.mean(losses[-20:]):.4f} "
                f"{seconds + time.time() - began:.0f} s",
                flush=True,
            )
        if (step + 1) % CHECK_EVERY == 0 or step + 1 == plan["steps"]:
            figures = check_adapter(inner, words)
            curve.append({"step": step + 1, "loss": round(float(np.mean(losses[-80:])), 4), **figures})
            print("adapter", json.dumps(curve[-1]), flush=True)
        if time.time() - saved > CHECKPOINT_SECONDS:
            keep(step + 1)
            saved = time.time()
    keep(plan["steps"])
    _write_adapter(model, out)
    return {"curve": curve, "seconds": round(seconds + time.time() - began)}


def _balanced(logits: Tensor, lesson: lessons.Lesson) -> Tensor:
    """Cross-entropy over segments; a segment weighs as the root of its length, so short answers count."""
    each = F.cross_entropy(logits, lesson.targets, reduction="none")
    total, weight = 0.0, 0.0
    for _, first, last in lesson.segments:
        share = (last - first) ** 0.5
        total = total + share * each[first:last].mean()
        weight += share
    return total / weight


_ADAPTER_KEYS = (
    "peft_type",
    "task_type",
    "r",
    "lora_alpha",
    "lora_dropout",
    "bias",
    "target_modules",
    "inference_mode",
)


def _write_adapter(model, out: Path) -> None:
    """The adapter in half precision, with a configuration that names no path of this machine."""
    from safetensors.torch import load_file, save_file

    folder = out / "adapter"
    model.save_pretrained(folder)
    weights = folder / "adapter_model.safetensors"
    save_file({name: value.half().contiguous() for name, value in load_file(weights).items()}, weights)
    written = json.loads((folder / "adapter_config.json").read_text())
    config = {key: written[key] for key in _ADAPTER_KEYS}  # what every peft release knows
    config["target_modules"] = sorted(config["target_modules"])
    config["base_model_name_or_path"] = "smollm2-135m-instruct"
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    (folder / "README.md").unlink(missing_ok=True)
    weights.chmod(0o644)


# ------------------------------------------------------------------------------------------------------------
# tower


def tiles_of(page: pages.Page, keep_blank: float, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Tiles [T, 3, h, w] and classes [T] of a drawn page; only a share of the blank tiles is kept."""
    tiles, classes = tower.cut(draw.draw(page)), torch.tensor(page.classes())
    keep = (classes != V.BLANK) | torch.from_numpy(rng.random(len(classes)) < keep_blank)
    return tiles[keep], classes[keep]


def tower_batch(step: int, plan: dict) -> tuple[Tensor, Tensor]:
    """Tiles of fresh practice sheets and of training pages, deterministic by step."""
    rng = np.random.default_rng(SEED * 1_000_003 + step)
    sheets = [draw.drill(step * plan["drills"] + k) for k in range(plan["drills"])]
    for _ in range(plan["pages"]):
        sheets.append(
            pages.make(
                str(rng.choice(pages.KINDS)),
                int(rng.integers(1_000_000)),
                test=False,
                dense=bool(rng.random() < 0.7),
            )
        )
    parts = [tiles_of(page, 0.25, rng) for page in sheets]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


@torch.no_grad()
def check_tower(eyes: tower.TileTower, count: int = 4) -> dict[str, float]:
    """Accuracy over tiles of held-out pages, over those not blank, and over held-out practice sheets."""
    eyes.eval()
    rng, hits, texts, sheets = np.random.default_rng(0), [], [], []
    for kind in pages.KINDS:
        for seed in range(count):
            tiles, classes = tiles_of(
                pages.make(kind, 20_000 + seed, test=True, dense=seed % 2 == 0), 1.0, rng
            )
            right = (eyes.logits(tiles).argmax(-1) == classes).float()
            hits.append(right)
            texts.append(right[classes != V.BLANK])
    for seed in range(count):
        tiles, classes = tiles_of(draw.drill(9_000_000 + seed), 1.0, rng)
        sheets.append((eyes.logits(tiles).argmax(-1) == classes).float())
    eyes.train()
    return {
        name: round(float(torch.cat(v).mean()), 5)
        for name, v in (("tiles", hits), ("printed", texts), ("sheets", sheets))
    }


def train_tower(out: Path, state_file: Path, plan: dict = TOWER) -> dict:
    """Cross-entropy over tiles. Returns the curve."""
    from safetensors.torch import save_file

    torch.manual_seed(SEED)
    eyes = tower.TileTower(tower.TileConfig()).to(memory_format=torch.channels_last).train()
    optimiser = torch.optim.AdamW(eyes.parameters(), lr=plan["lr"], weight_decay=0.01)
    start, seconds, curve, losses = 0, 0.0, [], []
    if state_file.exists():
        state = torch.load(state_file, weights_only=False)
        eyes.load_state_dict(state["tower"])
        optimiser.load_state_dict(state["optimiser"])
        start, seconds, curve = state["step"], state["seconds"], state["curve"]
    began, saved = time.time(), time.time()

    def keep(step: int) -> None:
        _save(
            {
                "tower": eyes.state_dict(),
                "optimiser": optimiser.state_dict(),
                "step": step,
                "seconds": seconds + time.time() - began,
                "curve": curve,
            },
            state_file,
        )

    for step in range(start, plan["steps"]):
        for group in optimiser.param_groups:
            group["lr"] = rate(step, plan)
        tiles, classes = tower_batch(step, plan)
        with torch.autocast("cpu", torch.bfloat16):
            logits = eyes.logits(tiles.contiguous(memory_format=torch.channels_last))
        loss = F.cross_entropy(logits.float(), classes)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(float(loss))
        if (step + 1) % 10 == 0:
            print(
                f"tower {step + 1}/{plan['steps']} loss {np.mean(losses[-10:]):.4f} "
                f"{seconds + time.time() - began:.0f} s",
                flush=True,
            )
        if (step + 1) % 100 == 0 or step + 1 == plan["steps"]:
            curve.append(
                {"step": step + 1, "loss": round(float(np.mean(losses[-50:])), 4), **check_tower(eyes)}
            )
            print("tower", json.dumps(curve[-1]), flush=True)
        if time.time() - saved > CHECKPOINT_SECONDS:
            keep(step + 1)
            saved = time.time()
    keep(plan["steps"])
    out.mkdir(parents=True, exist_ok=True)
    save_file(
        {
            name: (value.half() if value.is_floating_point() else value).contiguous()
            for name, value in eyes.state_dict().items()
        },
        out / "tower.safetensors",
    )
    return {"curve": curve, "seconds": round(seconds + time.time() - began)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python scripts/embedded/train.py", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=load.WEIGHTS, help="where the weights go")
    parser.add_argument("--state", type=Path, default=cache_dir() / "training", help="where checkpoints go")
    parser.add_argument("--stage", choices=("adapter", "tower"), help="train one part only")
    parser.add_argument("--fresh", action="store_true", help="ignore checkpoints of an earlier run")
    options = parser.parse_args(arguments)
    record_file = options.out / "train.json"
    for stage, train, plan in (("adapter", train_adapter, ADAPTER), ("tower", train_tower, TOWER)):
        if options.stage not in (None, stage):
            continue
        state = options.state / f"{stage}.pt"
        if options.fresh:
            state.unlink(missing_ok=True)
        result = train(options.out, state, plan)
        record = json.loads(record_file.read_text()) if record_file.exists() else {}
        record.update({"seed": SEED, stage: {"plan": plan, **result}})
        record_file.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    if options.stage is None:
        import evaluate

        evaluate.main(["--weights", str(options.out), "--write"])


if __name__ == "__main__":
    main()
