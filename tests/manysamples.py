"""A store of as many samples and cells as one likes, with pages to look at, for the report."""

from __future__ import annotations

import hashlib
import io
import json
import random
from functools import lru_cache
from pathlib import Path

import datasets
import fakestore
from fakestore import benchmark_cfg, method_cfg
from PIL import Image, ImageDraw

from kvbench.benchmarks.base import Scores
from kvbench.store import Cell, write_atomic

WORDS = ["total", "invoice", "date", "amount", "form", "account", "number", "balance", "name", "company"]


@lru_cache(maxsize=16)
def text(seed: int, size: tuple[int, int]) -> Image.Image:
    """A page of text."""
    rng = random.Random(seed)
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    for y in range(12, size[1] - 10, 16):
        pen.text((6, y), " ".join(rng.choice(WORDS) for _ in range(size[0] // 40)), fill="black")
    return image


def page(seed: int, size: tuple[int, int]) -> bytes:
    """A page of text as PNG, with its number as dots, so that no two are alike."""
    image = text(seed % 16, size).copy()
    pen = ImageDraw.Draw(image)
    for bit in range(12):
        x, y = 4 * (bit % 6), 4 * (bit // 6)
        pen.rectangle((x, y, x + 3, y + 3), fill="black" if seed >> bit & 1 else "white")
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()


def questions(folder: Path, samples: int, size: tuple[int, int], per_page: int = 1) -> Path:
    """docqa_mini's schema with ``samples`` questions, ``per_page`` on a page."""
    other = {"ucsf_document_id": "", "ucsf_document_page_no": "1", "data_split": "val"}
    pages = {number: page(number, size) for number in range(-(-samples // per_page))}
    rows = [
        {
            "questionId": str(i),
            "question": f"What is the {WORDS[i % len(WORDS)]} in line {i}?",
            "image": {"bytes": pages[i // per_page], "path": None},
            "answers": [f"answer {i}"],
            "question_types": ["form"],
            "docId": i // per_page,
            **other,
        }
        for i in range(samples)
    ]
    data = datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())
    target = folder / "docqa_mini"
    target.mkdir(parents=True)
    data.to_parquet(target / "validation-00000-of-00001.parquet")
    return target


def fill(store: Path, data: Path, samples: int, cells: int) -> list[Cell]:
    """fullkv and ``cells`` - 1 compressed cells, the fewer entries the more wrong answers; scored."""
    cfg = benchmark_cfg("docqa_mini", data)
    methods = [f"{base}{score}" for base in ("snapkv", "pyramidkv", "adakv", "sparsemm") for score in SCORES]
    grid = [(name, budget) for budget in (128, 64, 32, 16) for name in methods][: cells - 1]
    made = []
    for name, budget in [("fullkv", None), *grid]:
        texts, values = {}, {}
        for i in range(samples):
            roll = int(hashlib.sha256(f"{name} {budget} {i}".encode()).hexdigest(), 16) % 256
            wrong = budget is not None and roll > budget
            texts[i] = f"answer {roll} of line {i}, as far as it can be read" if wrong else f"answer {i}"
            values[i] = float(not wrong)
        cell = fakestore.add(store, cfg, method_cfg(name), budget, texts)
        scores = Scores(samples, {"anls": sum(values.values()) / samples}, {"anls": values})
        kept = {"min": budget or 400, "mean": float(budget or 400), "max": budget or 400}
        document = {"digest": cell.digest, "key": "k", "kept": kept, **scores.to_dict()}
        write_atomic(cell.folder / "scores" / f"{cell.digest}.json", json.dumps(document))
        made.append(cell)
    return made


SCORES = ("", "+mixkv", "+ecokv", "+bacon")
