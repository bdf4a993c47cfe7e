"""The prompt of the embedded model, in one place for training and inference.

One user turn without a system message: image tiles, a line break, the text. Question texts are finished
exactly as the lmms-eval tasks finish them (``TASKS`` is checked against the task code by a test).
"""

from __future__ import annotations

START, END, IMAGE = (
    "<|im_start|>",
    "<|im_end|>",
    "<empty_output>",
)  # IMAGE: a reserved token as placeholder of a tile

_SHORT = "\nAnswer the question using a single word or phrase."
#: Finished prompt by the kind of question, from the plain question.
TASKS = {
    "docvqa": lambda question: question + _SHORT,
    "textvqa": lambda question: question.capitalize() + _SHORT,
    "chartqa": lambda question: question + "\nAnswer the question with a single word.",
    "textcaps": lambda _: "Provide a one-sentence caption for the provided image.",
    "detailcaps": lambda _: "Describe this image in detail.",
}


def special(tokenizer, token: str) -> int:
    return tokenizer.convert_tokens_to_ids(token)


def plain(tokenizer, text: str) -> list[int]:
    """Token ids of a user's text; control tokens written out in it stay plain text."""
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids


def opening(tokenizer, system: str | None = None) -> list[int]:
    """What stands before the first tile."""
    start, end = special(tokenizer, START), special(tokenizer, END)
    ids = [start, *plain(tokenizer, f"system\n{system}"), end, *plain(tokenizer, "\n")] if system else []
    return [*ids, start, *plain(tokenizer, "user\n")]


def closing(tokenizer, text: str, *, after_image: bool = True) -> list[int]:
    """What stands after the last tile: the text and the opening of the assistant's turn."""
    start, end = special(tokenizer, START), special(tokenizer, END)
    return [
        *plain(tokenizer, ("\n" if after_image else "") + text),
        end,
        *plain(tokenizer, "\n"),
        start,
        *plain(tokenizer, "assistant\n"),
    ]
