"""Wordings of a prompt (conf/prompts, `prompt=v1`, `v2`, `cot`) in place of the task's own.

A wording holds the keyword arguments that the task's doc_to_text reads, lmms-eval's own mechanism
(lmms_eval_specific_kwargs). A chain of thought has two: `reason` asks for reasoning, `answer` for the answer
given that reasoning (BACON, appendix C.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvbench.benchmarks.base import REASONING
from kvbench.errors import UserError


def first_stage(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of the only prompt, or of that for the reasoning; empty: the task's own."""
    wording = cfg.get("wording") or {}
    return dict(wording.get("reason", wording))


def last_stage(cfg: Mapping[str, Any]) -> dict[str, Any] | None:
    """The keyword arguments of the prompt for the answer; None when there is one stage alone.

    Raises UserError when the reasoning does not occur in it.
    """
    wording = cfg.get("wording") or {}
    if "reason" not in wording:
        return None
    last = dict(wording.get("answer") or {})
    if not any(REASONING in str(value) for value in last.values()):
        raise UserError(
            f"prompt {cfg['prompt']} of benchmark {cfg['name']} has no {REASONING} in its `answer`, so the "
            "second stage would not see the first: correct conf/prompts."
        )
    return last


def reasoning_tokens(cfg: Mapping[str, Any]) -> int:
    """New tokens that the reasoning may take; 0 where there is one stage alone."""
    wording = cfg.get("wording") or {}
    return int(wording["max_new_tokens"]) if "reason" in wording else 0
