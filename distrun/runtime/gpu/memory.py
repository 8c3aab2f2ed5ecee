"""How much memory communication takes on this rank, by what it is for."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any

GRADIENT_BUCKETS = "gradient buckets"
FUSION_BUFFERS = "fusion buffers"
PINNED_STAGING = "pinned staging"
SHARED_MEMORY = "shared memory"

_notes: dict[tuple[int, str], tuple[weakref.ref[Any], int]] = {}
"""By the owner's id and the kind: the owner, and how many bytes."""


def note(kind: str, nbytes: int, owner: Any) -> None:
    """Note that `owner` holds so many bytes from now on, until it is gone; what was noted of it for this kind is replaced.

    Raises:
        TypeError: there are no weak references to `owner`.
    """
    key = id(owner), kind

    def forget(gone: weakref.ref[Any]) -> None:
        noted = _notes.get(key)
        if noted is not None and noted[0] is gone:  # another owner may have the id by now
            _notes.pop(key, None)

    _notes[key] = weakref.ref(owner, forget), nbytes


def communication_memory() -> dict[str, int]:
    """The bytes that communication takes on this rank, by kind; only kinds of which there is something.

    On the GPU: "gradient buckets" and "fusion buffers". On the host: "pinned staging", and "shared memory", what this rank has
    allocated of the memory that the ranks of a host share (large results among it, which belong to the caller).
    """
    totals: defaultdict[str, int] = defaultdict(int)
    for (_, kind), (_, nbytes) in list(_notes.items()):
        totals[kind] += nbytes
    shared = _shared()
    if shared:
        totals[SHARED_MEMORY] = shared
    return dict(totals)


def _shared() -> int:
    from distrun.runtime import world  # not at the top: the modules below it use this one

    return world.engine().backend.shared_bytes if world.is_initialized() else 0
