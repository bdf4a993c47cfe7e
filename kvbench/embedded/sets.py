"""The five mini benchmarks as parquet files in the schemas that the lmms-eval tasks read.

``python -m kvbench.embedded.sets`` (``make setup`` does) writes them to ``folder()``/NAME/SPLIT.parquet once.
The same seeds give the same pages, questions and images. Beside the original columns every row carries
``kvbench``: a JSON text with the page's kind and size in tiles and the tiles that answer the question.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from kvbench.embedded import digest
from kvbench.embedded.draw import draw
from kvbench.embedded.pages import DOCUMENTS, Page, make
from kvbench.errors import UserError
from kvbench.methods.version import said
from kvbench.paths import cache_dir
from kvbench.support.contents import sha256

SAMPLES = 100
SPLITS = {
    "docqa_mini": "validation",
    "textqa_mini": "validation",
    "chartqa_mini": "test",
    "caption_mini": "val",
    "describe_mini": "test",
}
_SOURCES = ("vocabulary.py", "page.py", "layout.py", "kinds.py", "pages.py", "draw.py", "sets.py")


def version() -> str:
    """Digest of the drawn sets, rows and pixels, as it was written when they were drawn.

    Before they are drawn it names what would draw them. Raises UserError when a file is not as it was drawn.
    """
    if not (path() / digest.FILE).exists():
        return f"undrawn {recipe()}"
    return _drawn(path())


@cache
def recipe() -> str:
    """Digest of what the code that draws the sets says, comments and docstrings apart: where they lie."""
    here = Path(__file__).resolve().parent
    return hashlib.sha256("".join(said(here / name) for name in _SOURCES).encode()).hexdigest()[:10]


@cache
def _drawn(root: Path) -> str:
    again = f"the generated data sets in {root} are not as they were drawn: delete it, they are drawn again."
    try:
        document = json.loads((root / digest.FILE).read_text("utf-8"))
        if document["files"] != _files(root):
            raise UserError(again)
        return str(document["content"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(again) from error


def _files(root: Path) -> dict[str, str]:
    """SHA-256 of every Parquet file: whether the digest that stands beside them is theirs."""
    return {str(file.relative_to(root)): sha256(file) for file in sorted(root.glob("*/*.parquet"))}


def path() -> Path:
    """Where the sets that this code draws belong, drawn or not."""
    return cache_dir() / f"sets-{recipe()}"


def folder() -> Path:
    """Root of the built sets: NAME/SPLIT.parquet.

    Raises:
        UserError: they have not been built.
    """
    if not (path() / digest.FILE).exists():
        raise UserError(
            f"the generated data sets are missing from {path()}: `kvbench fetch benchmark=docqa_mini` draws"
            " them."
        )
    return path()


def _png(page: Page) -> bytes:
    sink = io.BytesIO()
    draw(page).save(sink, "PNG", compress_level=6)
    return sink.getvalue()


def _about(page: Page, evidence: dict | None = None) -> str:
    about = {
        "page": page.seed,
        "kind": page.kind,
        "rows": page.rows,
        "columns": page.columns,
        "evidence": evidence
        or {f"{f.label}": {"label": f.label_tiles, "value": f.value_tiles} for f in page.fields},
    }
    return json.dumps(about, sort_keys=True)


def _asked(kinds: tuple[str, ...], each: int) -> Iterator[tuple[int, Page, bytes, object]]:
    """(page number, page, image, question): ``each`` questions a page, spread over it, kinds in turn."""
    for number in range(-(-SAMPLES // each)):
        page = make(kinds[number % len(kinds)], 100_000 + number, test=True, dense=True)
        image = _png(page)
        rng = random.Random(f"questions-{page.seed}")
        share = len(page.questions) / each
        chosen = [page.questions[int(share * k + rng.random() * share)] for k in range(each)]
        for question in chosen:
            yield number, page, image, question


def _docqa() -> list[dict]:
    return [
        {
            "questionId": str(50_000 + k),
            "question": q.question,
            "question_types": [page.kind],
            "image": {"bytes": image, "path": None},
            "docId": number,
            "ucsf_document_id": page.seed,
            "ucsf_document_page_no": "1",
            "answers": [q.answer],
            "data_split": "val",
            "kvbench": _about(page, q.evidence),
        }
        for k, (number, page, image, q) in enumerate(_asked(DOCUMENTS, 5))
    ]


def _textqa() -> list[dict]:
    return [
        {
            "image_id": f"scene{number:03d}",
            "question_id": 60_000 + k,
            "question": q.question,
            "image": {"bytes": image, "path": None},
            "image_width": page.columns * 48,
            "image_height": page.rows * 24,
            "flickr_original_url": "",
            "flickr_300k_url": "",
            "answers": [q.answer] * 10,
            "image_classes": ["Street sign"],
            "set_name": "val",
            "kvbench": _about(page, q.evidence),
            "ocr_tokens": [word for f in page.fields for word in (*f.label.split(), f.value)],
        }
        for k, (number, page, image, q) in enumerate(_asked(("scene",), 5))
    ]


def _chartqa() -> list[dict]:
    return [
        {
            "type": q.split,
            "question": q.question,
            "answer": q.answer,
            "image": {"bytes": image, "path": None},
            "kvbench": _about(page, q.evidence),
        }
        for _, page, image, q in _asked(("chart",), 5)
    ]


def _caption() -> list[dict]:
    rows = []
    for number in range(SAMPLES):
        kind = ("scene", "chart", "scene", "receipt", "scene", "form")[number % 6]
        page = make(kind, 200_000 + number, test=True, dense=True)
        rows.append(
            {
                "question_id": str(70_000 + number),
                "question": "Provide a one-sentence caption for the provided image.",
                "image": {"bytes": _png(page), "path": None},
                "image_id": f"caption{number:03d}",
                "image_classes": [kind],
                "flickr_original_url": "",
                "flickr_300k_url": "",
                "image_width": page.columns * 48,
                "image_height": page.rows * 24,
                "set_name": "val",
                "image_name": f"caption{number:03d}",
                "image_path": f"caption{number:03d}.png",
                "caption_id": [5 * number + k for k in range(5)],
                "caption_str": page.captions,
                "reference_strs": page.captions,
                "kvbench": _about(page),
            }
        )
    return rows


def _describe() -> list[dict]:
    kinds = ("form", "receipt", "notice", "table", "scene", "chart")
    rows = []
    for number in range(SAMPLES):
        # Descriptions of at least 80 words are longer than 120 tokens.
        seed = 300_000 + 1_000 * number
        page = make(kinds[number % 6], seed, test=True, dense=False)
        while len(page.description.split()) < 75:
            seed += 1
            page = make(kinds[number % 6], seed, test=True, dense=False)
        rows.append(
            {
                "source": "kvbench",
                "image": f"describe{number:03d}",
                "binary": _png(page),
                "GT_Caption_GPT4O": page.descriptions[0],
                "GT_Caption_GPT4V": page.descriptions[1],
                "GT_Caption_Gemini15Pro": page.descriptions[2],
                "kvbench": _about(page),
            }
        )
    return rows


_BUILDERS: dict[str, Callable[[], list[dict]]] = {
    "docqa_mini": _docqa,
    "textqa_mini": _textqa,
    "chartqa_mini": _chartqa,
    "caption_mini": _caption,
    "describe_mini": _describe,
}


def build() -> Path:
    """Write the sets unless this version is there; returns their root."""
    from datasets import Dataset, Image

    target = path()
    if (target / digest.FILE).exists():
        _drawn(target)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".sets-") as scratch:
        work = Path(scratch) / "sets"
        for name, rows_of in _BUILDERS.items():
            rows = rows_of()
            data = Dataset.from_list(rows)
            if "binary" not in rows[0]:
                data = data.cast_column("image", Image())
            (work / name).mkdir(parents=True)
            data.to_parquet(str(work / name / f"{SPLITS[name]}.parquet"))
        document = {"content": digest.of_rows(work.glob("*/*.parquet")), "files": _files(work)}
        (work / digest.FILE).write_text(json.dumps(document, indent=1) + "\n")
        try:
            os.rename(work, target)
        except OSError:  # another process was faster; its result is the same
            if not (target / digest.FILE).exists():
                raise
    return target


if __name__ == "__main__":
    try:
        print(build())
    except UserError as problem:
        print(f"kvbench: {problem}", file=sys.stderr)
        raise SystemExit(2) from None
