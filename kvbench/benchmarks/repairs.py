"""What a few of lmms-eval's tasks need before their figures can be trusted; by task name, or by metric.

Each function changes the task's configuration. Prompts, parsers and the library stay as they are, but for
OCRBench's sums, which are emptied before each use.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any


def ocrbench(config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Its sums live in a module global, so a second cell would count the first one's answers too; and it
    divides by the 1000 samples of the whole set, whatever the limit."""
    (entry,) = config["metric_list"]
    original = entry["aggregation"]
    sums = original.__globals__["OCRBench_score"]

    def accuracy(results: list[dict], args: Any) -> float:
        sums.update(dict.fromkeys(sums, 0))
        return original(results, args) * 1000 / len(results)

    config["metric_list"] = [{**entry, "aggregation": accuracy}]


def hrbench(config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """An answer that its rule cannot read would go to a judge model over the network (ten tries each).

    Here it is ``Z``, the parser's own sign for "none of the options", and so counts as wrong.
    """
    process = config["process_results"]
    evaluator = copy.copy(process.__globals__["hrbench_evaluator"])

    def by_rule(data: dict[str, Any]) -> dict[str, Any]:
        found = evaluator.can_infer(data["prediction"], dict(data["options"]))
        return {**data, "gpt_prediction": found or "Z"}

    evaluator.get_chat_response = by_rule
    config["process_results"] = FunctionType(
        process.__code__, {**process.__globals__, "hrbench_evaluator": evaluator}, process.__name__
    )


def screenspot(config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """It prints the accuracy of each platform and kind and returns only the mean: make them metrics."""
    process = config["process_results"]
    (centre,) = [entry for entry in config["metric_list"] if entry["metric"] == "screenspot_Center_ACC"]

    def with_groups(doc: dict, results: list[str]) -> dict[str, Any]:
        values = process(doc, results)
        value = values["screenspot_Center_ACC"]
        source, kind = value["data_source"], "text" if value["data_type"] == "text" else "icon"
        platform = next((name for name, own in PLATFORMS.items() if any(o in source for o in own)), "web")
        return {**values, f"center_{platform}_{kind}": value}

    groups = [f"center_{name}_{kind}" for name in (*PLATFORMS, "web") for kind in ("text", "icon")]
    config["process_results"] = with_groups
    config["metric_list"] = [*config["metric_list"], *({**centre, "metric": name} for name in groups)]


def compared_length(config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """Its ANLS compares texts with inner white space collapsed, as the DocVQA challenge does, but divides by
    the length before: `w` and `z` with 30 blanks between them would be 0.875 for the truth `abcd`.

    The definition (Biten et al. 2019, eq. 1) normalises by the longer of the two texts that are compared.
    Answers without such blanks score as before.
    """
    from lmms_eval.api import metrics

    def anls(references: list[str], predictions: Any, **kwargs: Any) -> dict[str, float]:
        given = predictions[0] if isinstance(predictions[0], str) else predictions[0][0]
        return metrics.anls([_collapsed(text) for text in references], [_collapsed(given)], **kwargs)

    config["metric_list"] = [
        {**entry, "metric": anls} if entry["metric"] == "anls" else entry for entry in config["metric_list"]
    ]


def _collapsed(text: str) -> str:
    return " ".join(text.split())


def drawn_by_sample(config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """An answer whose option cannot be read is given one at random, all samples from one stream: one answer
    that differs would change what every later sample is given. Here each sample has a stream of its own."""
    process = config["process_results"]

    def seeded(doc: Mapping[str, Any], results: list[str]) -> Any:
        state = random.getstate()
        random.seed(str(doc["id"]))
        try:
            return process(doc, results)
        finally:
            random.setstate(state)

    config["process_results"] = seeded


PLATFORMS = {"mobile": ("ios", "android"), "desktop": ("macos", "windows")}

REPAIRS: dict[str, Callable[[dict[str, Any], Mapping[str, Any]], None]] = {
    "ocrbench": ocrbench,
    "hrbench4k": hrbench,
    "hrbench8k": hrbench,
    "mmmu_val": drawn_by_sample,
    "screenspot_rec_test": screenspot,
}


def repair(config: dict[str, Any], cfg: Mapping[str, Any]) -> None:
    """Change the configuration of a task in place, where it has something to mend."""
    if cfg["task"] in REPAIRS:
        REPAIRS[cfg["task"]](config, cfg)
    metrics = [entry["metric"] for entry in config.get("metric_list") or ()]
    if "anls" in metrics and not config.get("process_results"):  # else it is not lmms-eval's shared one
        compared_length(config, cfg)
