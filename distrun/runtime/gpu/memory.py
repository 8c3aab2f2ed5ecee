"""The memory that communication holds on this rank, noted by those who allocate it, by what it is for."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any

GRADIENT_BUCKETS = "gradient buckets"
FUSION_BUFFERS = "fusion buffers"
PINNED_STAGING = "pinned staging"

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


def noted() -> dict[str, int]:
    """Return the bytes that are held now, by kind; only kinds of which there is something."""
    totals: defaultdict[str, int] = defaultdict(int)
    for (_, kind), (_, nbytes) in list(_notes.items()):
        totals[kind] += nbytes
    return dict(totals)
