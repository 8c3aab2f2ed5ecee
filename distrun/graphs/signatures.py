"""Signatures: lists of gradients or variables, which ranks compare once and then identify by a short number."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from distrun.runtime.collectives import consistency
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world

# By the ranks of a process set (empty for the world), then by the kind of list and its entries. It outlives `shutdown`,
# as do traced functions, whose operations have these numbers in their names.
_ids: dict[tuple[int, ...], dict[tuple[str, ...], int]] = {}


def signature_id(entries: Sequence[str], what: str, process_set: ProcessSet = global_process_set) -> int | str:
    """Return a short name of a list of entries, the same on all ranks. A new list is compared among the ranks.

    The name is a number. In elastic jobs, it is a digest, which needs no counting: a new rank sees lists for the first
    time that old ranks have in functions that they traced long ago. For the same reason, lists are only compared in the
    first generation, when they are new to all ranks.

    Args:
        entries: one text per gradient or variable, made by `consistency.describe`.
        what: the name of the list in error messages, such as "the gradients".
        process_set: the ranks whose lists are compared. Each process set has its own numbers.

    Raises:
        UsageError: this rank does not belong to the process set.
        MismatchError: the ranks' lists differ. It is raised on every rank, with the first difference.
    """
    key = (what, *entries)
    process_set.check_included()
    if world.is_elastic():
        return _digest(key, process_set)
    ids = _ids.setdefault(() if process_set is global_process_set else tuple(process_set.ranks or ()), {})
    number = ids.get(key)
    if number is None:
        number = len(ids)
        if process_set.size() > 1:
            consistency.compare(list(entries), what, f"consistency.{number}", process_set=process_set)
        ids[key] = number
    return number


_compared: dict[tuple[str, ...], str] = {}  # digests of lists, in elastic jobs


def _digest(key: tuple[str, ...], process_set: ProcessSet) -> str:
    digest = _compared.get(key)
    if digest is None:
        digest = hashlib.blake2b("\n".join(key).encode(), digest_size=8).hexdigest()
        if world.generation() == 1:
            what, *entries = key
            consistency.compare(entries, what, f"consistency.{what}", process_set=process_set)
        _compared[key] = digest
    return digest


def canonical_name(name: str) -> str:
    """Return a variable's name without the numbers that TensorFlow and Keras add to distinguish layers of a process.

    A rank that has built another model before has higher numbers, although its variables are the same.
    """
    return re.sub(r"_\d+(?=[/_]|$)", "", name.partition(":")[0])
