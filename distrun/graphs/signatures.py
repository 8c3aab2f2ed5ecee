"""Signatures: lists of gradients or variables, compared among the ranks once and known by a short number from then
on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from distrun.runtime.collectives import consistency
from distrun.runtime.process_set import ProcessSet, global_process_set

# By the ranks of a process set (none: the world), then by the kind of list and its entries. It outlives `shutdown`, as
# do traced functions whose operations have such names.
_ids: dict[tuple[int, ...], dict[tuple[str, ...], int]] = {}


def signature_id(entries: Sequence[str], what: str, process_set: ProcessSet = global_process_set) -> int:
    """Return the number of a list of entries, the same on all ranks; a list is compared when it is first seen.

    Args:
        entries: one text per gradient or variable, made by `consistency.describe`.
        what: what an error message calls the list, such as "the gradients".
        process_set: the ranks whose lists are compared, and among which the number is the list's.

    Raises:
        UsageError: this rank does not belong to the process set.
        MismatchError: the ranks' lists differ; raised on every rank, with the first difference.
    """
    key = (what, *entries)
    process_set.check_included()
    ids = _ids.setdefault(() if process_set is global_process_set else tuple(process_set.ranks or ()), {})
    number = ids.get(key)
    if number is None:
        number = len(ids)
        if process_set.size() > 1:
            consistency.compare(list(entries), what, f"consistency.{number}", process_set=process_set)
        ids[key] = number
    return number


def canonical_name(name: str) -> str:
    """Return a variable's name without the numbers by which TensorFlow and Keras tell layers of one process apart.

    A rank that has built another model before counts on from there, although its variables are the same.
    """
    return re.sub(r"_\d+(?=[/_]|$)", "", name.partition(":")[0])
