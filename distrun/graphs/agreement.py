"""Whether the ranks have the same gradients: asked once for each list of them, and what the list is called from then on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from distrun.runtime import world
from distrun.runtime.collectives import consistency

_numbers: dict[tuple[str, ...], int] = {}  # which outlive the engine, as traced functions with names made of them do


def number_of(entries: Sequence[str], what: str) -> int:
    """The number of a list of entries (see `consistency.describe`), the same on all ranks. When first seen, it is compared.

    `what` tells in an error message what is listed: "the gradients".

    Raises:
        MismatchError: the ranks' lists differ; raised on every rank, with the first difference.
    """
    key = (what, *entries)
    number = _numbers.get(key)
    if number is None:
        number = len(_numbers)
        if world.size() > 1:
            consistency.compare(list(entries), what, f"consistency.{number}")
        _numbers[key] = number
    return number


def plain_name(name: str) -> str:
    """A variable's name without the numbers by which TensorFlow and Keras tell layers of one process apart.

    A rank that has built another model before counts on from there, and its variables are the same nevertheless.
    """
    return re.sub(r"_\d+(?=[/_]|$)", "", name.partition(":")[0])
