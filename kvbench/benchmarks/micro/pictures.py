"""Documents, scene text, charts, captions, many pages: one picture kind a benchmark, five samples each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvbench.benchmarks.micro.drawing import bars, lines, png

Rows = tuple[str, list[dict[str, Any]]]
NAMES = ("Anna Weber", "Luis Ortega", "Mei Tanaka", "Omar Haddad", "Ida Lund")
TOTALS = ("41.20", "18.75", "96.40", "7.35", "230.00")
SHOPS = ("Blue Harbor", "Corner Bakery", "Old Mill", "Green Market", "Night Owl")


def _receipt(row: int) -> Any:
    return lines([SHOPS[row], f"Customer: {NAMES[row]}", f"Total: {TOTALS[row]}", f"No. {1000 + row}"])


def docvqa(_: Path) -> Rows:
    """Receipts."""
    asked = [("Who is the customer?", NAMES), ("What is the total?", TOTALS)]
    return "validation", [
        {
            "questionId": str(500 + row),
            "question": asked[row % 2][0],
            "question_types": ["form"],
            "image": _receipt(row),
            "docId": row,
            "ucsf_document_id": f"doc{row}",
            "ucsf_document_page_no": "1",
            "answers": [asked[row % 2][1][row]],
            "data_split": "val",
        }
        for row in range(5)
    ]


def textvqa(_: Path) -> Rows:
    """Signs; ten people's answers each."""
    return "validation", [
        {
            "image_id": f"sign{row}",
            "question_id": 700 + row,
            "question": "what is the name of the shop?",
            "question_tokens": ["what"],
            "image": lines([SHOPS[row]], paper=(30, 60, 40), ink=(255, 255, 255)),
            "image_classes": ["sign"],
            "answers": [SHOPS[row].lower()] * 9 + ["a shop"],
            "ocr_tokens": SHOPS[row].split(),
            "set_name": "val",
        }
        for row in range(5)
    ]


def chartqa(_: Path) -> Rows:
    """Bars."""
    rows = []
    for row in range(6):
        values = {"Mon": 10 + row, "Tue": 20 + 3 * row, "Wed": 15 + row}
        rows.append(
            {
                "type": ("human_test", "augmented_test")[row % 2],
                "question": "What is the value of Tue?",
                "answer": str(values["Tue"]),
                "image": bars(values),
            }
        )
    return "test", rows


def textcaps(_: Path) -> Rows:
    """Signs with five captions each."""
    forms = ("A sign says {}.", "The shop is called {}.", "a green sign with {} on it", "{} sign", "White {}")
    return "val", [
        {
            "question_id": str(row),
            "question": "",
            "image": lines([SHOPS[row]], paper=(30, 60, 40), ink=(255, 255, 255)),
            "image_id": f"cap{row}",
            "image_classes": ["sign"],
            "flickr_original_url": "",
            "caption_id": [row],
            "caption_str": [form.format(SHOPS[row]) for form in forms],
            "reference_strs": [form.format(SHOPS[row]) for form in forms],
        }
        for row in range(5)
    ]


def detailcaps(_: Path) -> Rows:
    """Receipts with three long descriptions each."""
    return "test", [
        {
            "dataset": "drawn",
            "image": f"receipt{row}",
            "binary": png(_receipt(row)),
            "GT_Caption_GPT4O": f"A receipt of {SHOPS[row]} for {NAMES[row]}. The total is {TOTALS[row]}.",
            "GT_Caption_GPT4V": f"The page is headed {SHOPS[row]} and lists a total of {TOTALS[row]}.",
            "GT_Caption_Gemini15Pro": f"{NAMES[row]} paid {TOTALS[row]} at {SHOPS[row]}.",
        }
        for row in range(5)
    ]


def ocrbench(_: Path) -> Rows:
    """Words to read; the last one is a formula, compared without blanks."""
    kinds = (
        "Regular Text Recognition",
        "Scene Text-centric VQA",
        "Doc-oriented VQA",
        "Key Information Extraction",
    )
    rows = [
        {
            "dataset": "drawn",
            "question": "what is written in the image?",
            "question_type": kinds[row % 4],
            "answer": [SHOPS[row]],
            "image": lines([SHOPS[row]]),
        }
        for row in range(5)
    ]
    formula = "Handwritten Mathematical Expression Recognition"
    rows.append(
        {
            "dataset": "HME100k",
            "question": "Please write out the expression of the formula in the image using LaTeX format.",
            "question_type": formula,
            "answer": ["x ^ { 2 } + 1"],
            "image": lines(["x² + 1"]),
        }
    )
    return "test", rows


def mp_docvqa(_: Path) -> Rows:
    """Two to five pages; the answer stands on the last but one."""
    rows = []
    for row in range(5):
        pages: dict[str, Any] = {f"image_{page}": None for page in range(1, 21)}
        count = 2 + row % 4
        for page in range(1, count + 1):
            pages[f"image_{page}"] = _receipt((row + page) % 5)
        answer = TOTALS[(row + count - 1) % 5]
        rows.append(
            {
                "questionId": str(900 + row),
                "question": f"What is the total of {SHOPS[(row + count - 1) % 5]}?",
                "doc_id": f"doc{row}",
                "page_ids": str([f"doc{row}_p{page}" for page in range(count)]),
                "answers": str([answer]),
                "answer_page_idx": str(count - 2),
                "data_split": "val",
                **pages,
            }
        )
    # The first row of a Parquet file decides a column's type: let it have all twenty pages.
    rows[0].update({f"image_{page}": rows[0]["image_1"] for page in range(1, 21)})
    return "val", rows


SETS = {
    "docvqa": docvqa,
    "textvqa": textvqa,
    "chartqa": chartqa,
    "textcaps": textcaps,
    "detailcaps": detailcaps,
    "ocrbench": ocrbench,
    "mp_docvqa": mp_docvqa,
}
