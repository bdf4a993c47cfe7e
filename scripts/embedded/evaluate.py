"""Held-out figures of the shipped model through its own eyes, uncompressed and greedy, and the card that
states them.

``python scripts/embedded/evaluate.py`` prints them; ``--write`` also puts them into the weights' folder.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import torch

import lessons
import train
from kvbench.embedded import draw, load, pages, prompt, tower

_SEED = 400_000  # pages of neither training nor the mini benchmarks


@torch.no_grad()
def answer(model, words, tiles: torch.Tensor, text: str, limit: int) -> list[int]:
    """Greedy answer tokens, without the end, to a finished prompt about one image's tiles [T, 3, h, w]."""
    ids = [*prompt.opening(words), *[model.config.image_token_id] * len(tiles), *prompt.closing(words, text)]
    out = model.generate(
        input_ids=torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        pixel_values=tiles[None],
        max_new_tokens=limit,
    )[0, len(ids) :].tolist()
    end = prompt.special(words, prompt.END)
    return out[: out.index(end)] if end in out else out


def questions(model, words, kinds: tuple[str, ...], count: int) -> dict[str, float]:
    """Exact match over ``count`` questions, four a page."""
    right = []
    for number in range(-(-count // 4)):
        page = pages.make(kinds[number % len(kinds)], _SEED + number, test=True)
        tiles = tower.cut(draw.draw(page))
        for q in random.Random(page.seed).sample(page.questions, 4):
            text = prompt.TASKS[lessons.task_of(page.kind)](q.question)
            said = words.decode(answer(model, words, tiles, text, 16), skip_special_tokens=True)
            right.append(said == q.answer)
    return {"exact": round(sum(right) / len(right), 4), "n": len(right)}


def texts(model, words, task: str, kinds: tuple[str, ...], count: int, limit: int) -> dict[str, float]:
    """ROUGE-L (F) against the canonical caption or description, and the mean number of generated tokens."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"])
    scores, lengths = [], []
    for number in range(count):
        page = pages.make(
            kinds[number % len(kinds)], _SEED + 500 + number, test=True, dense=task == "textcaps"
        )
        truth = page.caption if task == "textcaps" else page.description
        said = answer(model, words, tower.cut(draw.draw(page)), prompt.TASKS[task](""), limit)
        score = scorer.score(truth, words.decode(said, skip_special_tokens=True))["rougeL"].fmeasure
        if task == "textcaps" or len(said) >= 120:
            scores.append(score)
        lengths.append(len(said))
    return {
        "rougeL": round(sum(scores) / max(1, len(scores)), 4),
        "n": len(scores),
        "tokens": round(sum(lengths) / len(lengths), 1),
    }


def evaluate(weights: Path, count: int = 60, long: int = 10) -> dict:
    """All figures. ``count`` questions a task, ``long`` descriptions."""
    model, words = load.load(weights)
    began = time.time()
    found = {"tiles": train.check_tower(model.model.vision_tower)}
    model.eval()
    print("tiles", found["tiles"], flush=True)
    for name, kinds in (("docvqa", pages.DOCUMENTS), ("textvqa", ("scene",)), ("chartqa", ("chart",))):
        found[name] = questions(model, words, kinds, count)
        print(name, found[name], flush=True)
    found["captions"] = texts(model, words, "textcaps", ("scene", "chart", "receipt", "form"), 12, 64)
    print("captions", found["captions"], flush=True)
    found["descriptions"] = texts(
        model, words, "detailcaps", ("form", "receipt", "notice", "table", "chart"), long, 256
    )
    print("descriptions", found["descriptions"], f"{time.time() - began:.0f} s", flush=True)
    return found


def card(record: dict) -> str:
    """The README of the weights, from train.json."""
    adapter, eyes, held = record["adapter"], record["tower"], record["held_out"]
    long = held["descriptions"]["rougeL"]

    def rows(curve: list[dict]) -> str:
        names = sorted(curve[0], key=lambda name: (name != "step", name))
        lines = ["| " + " | ".join(names) + " |", "|" + " ---: |" * len(names)]
        return "\n".join(
            lines + ["| " + " | ".join(str(point[name]) for name in names) + " |" for point in curve]
        )

    return f"""# Weights of the embedded model

What lies here, both in half precision: `tower.safetensors` (the tile classifier that is the model's eyes) and
`adapter/` (LoRA on q, k, v and o of SmolLM2-135M-Instruct). The language model itself is fetched by `make
setup`. Licence: Apache-2.0, as SmolLM2's. Meant for the mini benchmarks of this repository only: it
reads nothing but pages of its own generator.

## Recipe

`make embedded` (seed {record["seed"]}, two CPU cores, bfloat16 arithmetic; goes on from its checkpoint when
interrupted). Training pages share neither seeds nor values with test pages, and lack a fifth of the words.

* Adapter: {json.dumps(adapter["plan"])}; {adapter["seconds"]} s.
  Each step sees {adapter["plan"]["pages"]} pages with up to 13 prompts each; the loss is on the answers only.
* Tower: {json.dumps(eyes["plan"])}; {eyes["seconds"]} s.
  Practice sheets and training pages are drawn afresh each step.

## Held out, uncompressed, greedy, through the eyes

| figure | value | wanted |
| --- | ---: | ---: |
| tiles of test pages read right | {held["tiles"]["tiles"]} | 0.99 |
| of these, printed tiles | {held["tiles"]["printed"]} | |
| document questions, exact ({held["docvqa"]["n"]}) | {held["docvqa"]["exact"]} | 0.90 |
| sign questions, exact ({held["textvqa"]["n"]}) | {held["textvqa"]["exact"]} | 0.85 |
| chart questions, exact ({held["chartqa"]["n"]}) | {held["chartqa"]["exact"]} | 0.85 |
| captions, ROUGE-L ({held["captions"]["n"]}) | {held["captions"]["rougeL"]} | |
| descriptions (120 tokens or more), ROUGE-L ({held["descriptions"]["n"]}) | {long} | 0.80 |

Mean length of a description: {held["descriptions"]["tokens"]} tokens.

## Curves

Adapter, on held-out pages as token embeddings (questions: share of answers without a wrong token; texts:
share of right tokens):

{rows(adapter["curve"])}

Tower (accuracy on held-out pages, on their printed tiles, on held-out practice sheets):

{rows(eyes["curve"])}
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python scripts/embedded/evaluate.py", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--weights", type=Path, default=load.WEIGHTS)
    parser.add_argument("--count", type=int, default=60, help="questions a task")
    parser.add_argument("--long", type=int, default=10, help="descriptions")
    parser.add_argument("--write", action="store_true", help="write the figures into train.json and the card")
    options = parser.parse_args(arguments)
    found = evaluate(options.weights, options.count, options.long)
    if options.write:
        file = options.weights / "train.json"
        record = {**json.loads(file.read_text()), "held_out": found}
        file.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        (options.weights / "README.md").write_text(card(record))


if __name__ == "__main__":
    main()
