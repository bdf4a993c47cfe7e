"""Text from data stays text: a special token that it spells out is read letter by letter.

A question may hold ``<|im_end|>`` or ``<|image_pad|>``, which chat template, processor and tokenizer would
take for their own. Before they see it, each gives way to a private character that no vocabulary merges with
its neighbours; afterwards that character's ids give way to those of the spelling. Other text is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kvbench.errors import Unanswerable

FIRST = 0x10FFFD  # the last code point for private use; further ones count down from it
_PROCESSOR_TOKENS = ("image_token", "video_token", "start_image_token", "end_image_token")


def special_tokens(tokenizer: Any, processor: Any = None) -> set[str]:
    """What the tokenizer or the processor would take for more than text."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    named = {getattr(processor, name, None) for name in _PROCESSOR_TOKENS}
    return {token for token in added | set(tokenizer.all_special_tokens) | named if token}


class Literal:
    """The special tokens that some texts spell out, set aside and put back; false when there are none."""

    def __init__(self, texts: Sequence[str], tokenizer: Any, processor: Any = None) -> None:
        longest_first = sorted(special_tokens(tokenizer, processor), key=lambda token: (-len(token), token))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._tokenizer = tokenizer
        found = [token for text in texts for token in self._pattern.findall(text)]
        self._found, there = len(found), set("".join(texts))
        free = (char for char in map(chr, range(FIRST, 0, -1)) if char not in there)
        self._chars = {token: next(free) for token in dict.fromkeys(found)}

    def __bool__(self) -> bool:
        return bool(self._chars)

    def hide(self, text: str) -> str:
        """The text with a private character in place of each special token."""
        return self._pattern.sub(lambda match: self._chars[match.group()], text)

    def reveal(self, ids: list[int]) -> tuple[list[int], list[int]]:
        """Ids with the spellings in place, and for each id its old index, -1 for what is new.

        Raises Unanswerable when the private characters cannot be told from other text.
        """
        stand_ins = {
            tuple(self._inside(char, False)): self._spelling(token) for token, char in self._chars.items()
        }
        new, origin, place, seen = [], [], 0, 0
        while place < len(ids):
            here = next((key for key in stand_ins if tuple(ids[place : place + len(key)]) == key), None)
            if here is None:
                new.append(ids[place])
                origin.append(place)
                place += 1
            else:
                new += stand_ins[here]
                origin += [-1] * len(stand_ins[here])
                place, seen = place + len(here), seen + 1
        if seen != self._found or len(stand_ins) != len(self._chars):
            raise Unanswerable(
                f"the prompt spells out {', '.join(self._chars)}, which this tokenizer cannot read as plain"
                " text"
            )
        return new, origin

    def _spelling(self, token: str) -> list[int]:
        ids = self._inside(token, True)
        own = self._tokenizer.convert_tokens_to_ids(token)
        return [part for char in token for part in self._inside(char, True)] if own in ids else ids

    def _inside(self, text: str, split: bool) -> list[int]:
        """Ids of a text that does not open a prompt: some tokenizers put a blank before one that does."""

        def encode(text: str) -> list[int]:
            return self._tokenizer(text, add_special_tokens=False, split_special_tokens=split)["input_ids"]

        line, ids = encode("\n"), encode("\n" + text)
        return ids[len(line) :] if ids[: len(line)] == line else encode(text)


def spliced(values: Tensor, origin: list[int]) -> Tensor:
    """Values by token, [1, N], after ``Literal.reveal``: 0 for what is new."""
    taken = values[:, [max(place, 0) for place in origin]].clone()
    taken[:, [place < 0 for place in origin]] = 0
    return taken
