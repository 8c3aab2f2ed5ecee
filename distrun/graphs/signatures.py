"""Signatures: lists of gradients or variables, compared among the ranks once and known by a short number from then
on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from distrun.runtime.collectives import consistency
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world

# By the ranks of a process set (none: the world), then by the kind of list and its entries. It outlives `shutdown`, as
# do traced functions whose operations have such names.
_ids: dict[tuple[int, ...], dict[tuple[str, ...], int]] = {}


def signature_id(entries: Sequence[str], what: str, process_set: ProcessSet = global_process_set) -> int | str:
    """Return a short name of a list of entries, the same on all ranks; a list is compared when it is first seen.

    It is a number. In elastic jobs it is a digest, which needs no counting: a newcomer sees lists for the first time
    that survivors have in functions which they traced long ago. For the same reason lists are not compared there but in
    the first generation, in which all ranks see them for the first time.

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
    """Return a variable's name without the numbers by which TensorFlow and Keras tell layers of one process apart.

    A rank that has built another model before counts on from there, although its variables are the same.
    """
    return re.sub(r"_\d+(?=[/_]|$)", "", name.partition(":")[0])
