"""The communication memory of this rank: how much is held and what for, noted by whoever allocates it."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any

GRADIENT_BUCKETS = "gradient buckets"
FUSION_BUFFERS = "fusion buffers"
PINNED_STAGING = "pinned staging"

_notes: dict[tuple[int, str], tuple[weakref.ref[Any], int]] = {}
"""The owner and its bytes, by the owner's id and the kind."""


def note(kind: str, nbytes: int, owner: Any) -> None:
    """Note that `owner` holds `nbytes` bytes from now on, until it is garbage-collected; replaces its previous note of
    this kind.

    Raises:
        TypeError: `owner` does not support weak references.
    """
    key = id(owner), kind

    def forget(gone: weakref.ref[Any]) -> None:
        noted = _notes.get(key)
        if noted is not None and noted[0] is gone:  # another owner may have the id by now
            _notes.pop(key, None)

    _notes[key] = weakref.ref(owner, forget), nbytes


def noted() -> dict[str, int]:
    """Return the bytes that are held now, by kind; kinds of which nothing is held are left out."""
    totals: defaultdict[str, int] = defaultdict(int)
    for (_, kind), (_, nbytes) in list(_notes.items()):
        totals[kind] += nbytes
    return dict(totals)
