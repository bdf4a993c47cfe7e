"""LongBench in small: its schema over the texts that ship with kvbench, five samples a task."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kvbench.benchmarks import documents

Rows = tuple[str, list[dict[str, Any]]]
KINDS = ("Number of something", "Individual", "City", "Date")
QA = ("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique")
SUMMARY = ("gov_report", "qmsum", "multi_news")


def passages() -> dict[str, str]:
    """The passage of each document by its id."""
    index = json.loads((documents.FOLDER / "index.json").read_text(encoding="utf-8"))
    return {entry["id"]: documents.passage(documents.FOLDER, entry) for entry in index}


def _row(task: str, number: int, context: str, question: str, answers: list[str], **more: Any) -> dict:
    row = {
        "_id": f"{task}-{number}",
        "question": question,
        "context": context,
        "answers": answers,
        "length": len(context.split()),
        "dataset": task,
        "language": "en",
        "all_classes": [""],
    }
    return {**row, **more}


def asked(task: str, most: int | None = None) -> list[dict]:
    """Questions about passages, with their answers."""
    found = json.loads((documents.FOLDER / "questions.json").read_text(encoding="utf-8"))
    texts = passages()
    return [
        _row(task, number, texts[entry["document"]], entry["question"], entry["answers"])
        for number, entry in enumerate(found[:most])
    ]


def _questions(task: str, _: Path) -> Rows:
    return "test", asked(task, 5)


def _summaries(task: str, _: Path) -> Rows:
    texts = list(passages().items())[:5]
    return "test", [
        _row(
            task, number, text, "What is the text about?" if task == "qmsum" else "", [text.split("\n\n")[0]]
        )
        for number, (_, text) in enumerate(texts)
    ]


def _trec(task: str, _: Path) -> Rows:
    shots = "Question: How many legs has a dog ?\nType: Number of something\n"
    shots += "Question: Who wrote Emma ?\nType: Individual"
    asked = (
        "How many stars are there ?",
        "Who was Anne Elliot ?",
        "What town is on the Thames ?",
        "When did it end ?",
    )
    return "test", [
        _row(task, n, shots, f"Question: {question}\nType:", [KINDS[n]], all_classes=list(KINDS))
        for n, question in enumerate(asked)
    ]


def _shots(task: str, _: Path) -> Rows:
    rows = asked(task, 5)
    for row in rows:
        lead = (
            "Dialogue: A: Is it late?\nB: Not yet.\nSummary: B says it is not late."
            if task == "samsum"
            else ""
        )
        row["context"] = lead or f"Passage:\n{row['context']}\nQuestion: Is it text?\nAnswer:\nYes"
        row["question"] = (
            f"Dialogue: A: {row['question']}\nB: {row['answers'][0]}.\nSummary:" if lead else row["question"]
        )
    return "test", rows


def _count(task: str, _: Path) -> Rows:
    texts = [text.split("\n\n")[0] for text in passages().values()][:4]
    rows = []
    for number in range(5):
        chosen = [texts[(number + place) % (2 + number % 3)] for place in range(5)]
        body = "\n\n".join(f"Paragraph {place + 1}: {text}" for place, text in enumerate(chosen))
        rows.append(_row(task, number, body, "", [str(len(set(chosen)))]))
    return "test", rows


def _retrieval(task: str, _: Path) -> Rows:
    texts = list(passages().items())[:5]
    body = "\n\n".join(f"Paragraph {place + 1}: {text[:600]}" for place, (_, text) in enumerate(texts))
    return "test", [
        _row(task, number, body, f"A passage that begins: {text[:80]}", [f"Paragraph {number + 1}"])
        for number, (_, text) in enumerate(texts)
    ]


def _code(task: str, _: Path) -> Rows:
    lines = Path(documents.__file__).read_text(encoding="utf-8").split("\n")
    starts = [
        number for number, line in enumerate(lines) if number > 20 and line.strip() and "#" not in line
    ][:5]
    return "test", [
        _row(task, number, "\n".join(lines[:start]) + "\n", "", [lines[start]])
        for number, start in enumerate(starts)
    ]


def _named(maker: Callable[[str, Path], Rows], *tasks: str) -> dict[str, Callable[[Path], Rows]]:
    return {f"longbench_{task.replace('-', '_')}": partial(maker, task) for task in tasks}


SETS: dict[str, Callable[[Path], Rows]] = {
    **_named(_questions, *QA),
    **_named(_summaries, *SUMMARY),
    **_named(_trec, "trec"),
    **_named(_shots, "triviaqa", "samsum"),
    **_named(_count, "passage_count"),
    **_named(_retrieval, "passage_retrieval_en"),
    **_named(_code, "lcc", "repobench-p"),
}
