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
    """New tokens that the reasoning may take; 0 where there is one stage alone.

    Raises UserError when a chain of thought does not say.
    """
    wording = cfg.get("wording") or {}
    if "reason" not in wording:
        return 0
    if not isinstance(limit := wording.get("max_new_tokens"), int) or limit < 1:
        raise UserError(
            f"prompt {cfg['prompt']} of benchmark {cfg['name']} has no max_new_tokens of at least 1 for its "
            "reasoning: correct conf/prompts."
        )
    return limit


def check(cfg: Mapping[str, Any], words: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Raise UserError for a keyword that the task's doc_to_text would pass over."""
    unknown = [key for key in words if key not in usual]
    if unknown:
        raise UserError(
            f"prompt {cfg['prompt']} of benchmark {cfg['name']} sets {', '.join(unknown)}, but its task "
            f"reads {', '.join(usual) or 'no keyword'}: correct conf/prompts."
        )
