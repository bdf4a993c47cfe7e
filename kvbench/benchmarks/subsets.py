"""Which samples of a data set are asked: `subset` of a benchmark's config.

``full``; ``first_N``; ``last_N`` (a development split beside ``first_N``); ``random_N``, N samples drawn with
seed 0 and kept in the data set's order; or ``COLUMN=VALUE``, those whose column has that value.
"""

from __future__ import annotations

import random
import re
from typing import Any

from kvbench.errors import UserError


def indices(subset: str, docs: Any, name: str) -> list[int] | None:
    """Positions in the data set, ascending; None for all.

    docs: a ``datasets.Dataset``. Raises UserError when the subset cannot be read or is empty.
    """
    subset = str(subset)
    if subset == "full":
        return None
    counted = re.fullmatch(r"(first|last|random)_(\d+)", subset)
    column, equals, value = subset.partition("=")
    if counted:
        wanted = int(counted.group(2))
        if not 1 <= wanted <= len(docs):
            raise UserError(f"subset={subset} of {name} asks for {wanted} of {len(docs)} samples: lower it.")
        if counted.group(1) == "first":
            return list(range(wanted))
        if counted.group(1) == "last":
            return list(range(len(docs) - wanted, len(docs)))
        return sorted(random.Random(0).sample(range(len(docs)), wanted))
    if not equals:
        raise UserError(
            f"subset={subset} of {name} is none of full, first_N, last_N, random_N, COLUMN=VALUE: correct it."
        )
    if column not in docs.column_names:
        raise UserError(
            f"subset={subset} of {name} names no column: choose from {', '.join(docs.column_names)}."
        )
    found = [index for index, own in enumerate(docs[column]) if str(own) == value]
    if not found:
        raise UserError(f"subset={subset} of {name} holds no sample: check the value of {column}.")
    return found
