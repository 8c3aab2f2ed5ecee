"""The coordinator's decisions: what the ranks do, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

from distrun.runtime.operations.request import Request

LONGEST_LIST = 1 << 14
"""Cache ids in one message."""

Key = tuple[int, str | int]
"""An operation among those under way: the process set, then the name or, unnamed, the place in the order."""


@dataclass(slots=True)  # made for every operation, and frozen it would take thrice the time
class Execute:
    """Execute the requests with these cache ids, in this order; small ones may be fused."""

    cache_ids: list[int]
    process_set: int = 0
    taking_part: int = 0
    """The number of ranks whose elements count, if some have joined (see `distrun.join`); 0: none has."""


@dataclass(frozen=True)
class Define:
    """Execute this request and, unless it is -1, remember the cache id that it has from now on."""

    cache_id: int
    request: Request
    taking_part: int = 0
    """As in `Execute`."""


@dataclass(frozen=True)
class Fail:
    """Give up the operation under this key, with this text, on these ranks, which have all submitted it."""

    key: Key
    text: str
    ranks: tuple[int, ...]
    is_stall: bool = False


@dataclass(frozen=True)
class AllJoined:
    """All ranks of a process set have joined."""

    process_set: int
    last: int
    """The rank that was the last to join."""
    unnamed: int
    """The number of unnamed operations that the set has had."""


@dataclass(frozen=True)
class Retune:
    """Fuse what is decided from here on up to so many bytes."""

    threshold: int
    process_set: int = 0


Decision = Execute | Define | Fail | AllJoined | Retune
