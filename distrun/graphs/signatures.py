"""Signatures: lists of gradients or variables, compared among the ranks once and known by a short number from then
on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from distrun.runtime import world
from distrun.runtime.collectives import consistency

# By the kind of list and its entries. It outlives `shutdown`, as do traced functions whose operations have such names.
_ids: dict[tuple[str, ...], int] = {}


def signature_id(entries: Sequence[str], what: str) -> int:
    """Return the number of a list of entries, the same on all ranks; a list is compared when it is first seen.

    Args:
        entries: one text per gradient or variable, made by `consistency.describe`.
        what: what an error message calls the list, such as "the gradients".

    Raises:
        MismatchError: the ranks' lists differ; raised on every rank, with the first difference.
    """
    key = (what, *entries)
    number = _ids.get(key)
    if number is None:
        number = len(_ids)
        if world.size() > 1:
            consistency.compare(list(entries), what, f"consistency.{number}")
        _ids[key] = number
    return number


def canonical_name(name: str) -> str:
    """Return a variable's name without the numbers by which TensorFlow and Keras tell layers of one process apart.

    A rank that has built another model before counts on from there, although its variables are the same.
    """
    return re.sub(r"_\d+(?=[/_]|$)", "", name.partition(":")[0])
