"""Tiny data sets in the original schemas, so that the task code can be tested without the generated sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
from PIL import Image

QUESTIONS = ["what is the total?", "who signed the form?", "what is the date?", "which shop is it?"]
CAPTIONS = [
    ["A red bus stands at the stop.", "The bus is red.", "a red bus with the number 12"],
    ["A sign says 'No Parking'.", "No parking sign by Acme Inc.", "A white sign"],
    ["A cup of tea on a table.", "The cup says Tea.", "a cup, a table"],
    ['Book called "The Sea" lies on a bed.', "A book on a bed.", "The Sea is a book"],
]


def picture(index: int) -> Image.Image:
    return Image.new("RGB", (8 + index, 8), (index * 20, 0, 0))


def rows(name: str) -> tuple[str, list[dict[str, Any]]]:
    """(split, rows) of one set."""
    n = range(len(QUESTIONS))
    if name == "docqa_mini":
        other = {"ucsf_document_id": "", "ucsf_document_page_no": "1", "data_split": "val"}
        return "validation", [
            {
                "questionId": str(100 + i),
                "question": QUESTIONS[i],
                "image": picture(i),
                "answers": [f"answer {i}", f"{i}"],
                "question_types": ["form"],
                "docId": i,
                **other,
            }
            for i in n
        ]
    if name == "textqa_mini":
        return "validation", [
            {
                "image_id": f"s{i}",
                "question_id": 7 + i,
                "question": QUESTIONS[i],
                "image": picture(i),
                "answers": [f"word{i}"] * 8 + ["other", "thing"],
                "ocr_tokens": ["a"],
            }
            for i in n
        ]
    if name == "chartqa_mini":
        return "test", [
            {
                "type": "human_test" if i % 2 else "augmented_test",
                "question": QUESTIONS[i],
                "answer": str(10 * (i + 1)),
                "image": picture(i),
            }
            for i in n
        ]
    if name == "caption_mini":
        return "val", [
            {
                "question_id": str(i),
                "question": "",
                "image": picture(i),
                "image_id": f"im{i}",
                "caption_str": CAPTIONS[i],
            }
            for i in n
        ]
    if name == "describe_mini":
        return "test", [
            {
                "dataset": "x",
                "image": f"d{i}",
                "binary": png(i),
                "GT_Caption_GPT4O": CAPTIONS[i][0],
                "GT_Caption_GPT4V": CAPTIONS[i][1],
                "GT_Caption_Gemini15Pro": CAPTIONS[i][2],
            }
            for i in n
        ]
    raise KeyError(name)


def png(index: int) -> bytes:
    import io

    buffer = io.BytesIO()
    picture(index).save(buffer, "PNG")
    return buffer.getvalue()


def write(folder: Path, name: str) -> Path:
    """Write one set as parquet under ``folder``; returns its folder."""
    split, data = rows(name)
    data = datasets.Dataset.from_list(data)
    target = folder / name
    target.mkdir(parents=True)
    data.to_parquet(target / f"{split}-00000-of-00001.parquet")
    return target
