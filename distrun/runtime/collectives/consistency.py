"""Compares lists among the ranks: of parameters, of gradients, of tensors to broadcast.

Operations with different names on different ranks would wait for one another forever. Comparing the lists first turns
this into an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np

from distrun.errors import MismatchError
from distrun.runtime import collectives
from distrun.runtime.collectives import objects
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world

_DIGEST_BYTES = 16


def describe(name: str, shape: Iterable[int | None], dtype: object) -> str:
    """Return a tensor's entry in a list: `fc.weight [10, 128] float32`. `dtype` is shown by its name."""
    return f"{name} {list(shape)} {str(dtype).rpartition('.')[2]}"


def compare(
    entries: Sequence[str], what: str, name: str, note: bytes = b"", process_set: ProcessSet = global_process_set
) -> list[bytes]:
    """Make sure that all ranks have the same `entries`, and return every rank's `note`, in rank order.

    Costs one small allgather. Ranks that have joined (see `join`) are left out.

    Args:
        entries: one line per tensor (see `describe`).
        what: the name of the list in the error message.
        name: how the ranks match the operation.
        note: bytes for the other ranks, of the same length on all ranks that have the same entries.
        process_set: the ranks that take part.

    Raises:
        MismatchError: the entries differ. Raised on every rank, with the first difference.
    """
    digest = hashlib.blake2b("\n".join(entries).encode(), digest_size=_DIGEST_BYTES).digest()
    message = np.frombuffer(digest + note, np.uint8)
    gathered = collectives.allgather(message, name, process_set).tobytes()
    parts = [gathered[start : start + message.size] for start in range(0, len(gathered), message.size)]
    # A message of another length comes with other entries, so the first part that is cut wrongly here does not begin
    # with this rank's digest.
    if all(part.startswith(digest) for part in parts):
        return [part[_DIGEST_BYTES:] for part in parts]
    told = objects.allgather_object((world.rank(), list(entries)), f"{name}.difference", process_set)
    raise MismatchError(_first_difference([each for _, each in told], what, [rank for rank, _ in told]))


def _first_difference(lists: Iterable[list[str]], what: str, ranks_of: Sequence[int]) -> str:
    for place, row in enumerate(zip_longest(*lists, fillvalue="missing")):
        if len(set(row)) > 1:
            ranks: dict[str, list[int]] = {}
            for rank, entry in zip(ranks_of, row, strict=True):
                ranks.setdefault(entry, []).append(rank)
            told = "; ".join(
                f"{entry} on rank{'s' * (len(who) > 1)} {', '.join(map(str, who))}" for entry, who in ranks.items()
            )
            return f"{what} differ between the ranks, first in place {place}: {told}. Build the same on every rank."
    return f"{what} differ between the ranks"
