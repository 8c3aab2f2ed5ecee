"""The coordinator's decisions: what the ranks do, and in what order."""

from __future__ import annotations

from dataclasses import dataclass

from distrun.runtime.operations.request import Request

LONGEST_LIST = 1 << 14
"""The most cache ids in one message."""

Key = tuple[int, str | int]
"""The key of an operation under way: the process set, then the name or, if unnamed, the place in the order."""


@dataclass(slots=True)  # not frozen: one is made for every operation, and freezing takes three times as long
class Execute:
    """Execute the requests with these cache ids, in this order. Small ones may be fused."""

    cache_ids: list[int]
    process_set: int = 0
    taking_part: int = 0
    """The number of ranks whose elements count, if some have joined (see `distrun.join`). 0: none has."""


@dataclass(frozen=True)
class Define:
    """Execute this request, and remember its new cache id, unless that is -1."""

    cache_id: int
    request: Request
    taking_part: int = 0
    """As in `Execute`."""


@dataclass(frozen=True)
class Fail:
    """Fail the operation with this key, with this text, on `ranks`, which have all submitted it."""

    key: Key
    text: str
    ranks: tuple[int, ...]
    is_stall: bool = False


@dataclass(frozen=True)
class AllJoined:
    """All ranks of a process set have joined."""

    process_set: int
    last: int
    """The rank that joined last."""
    unnamed: int
    """The number of unnamed operations so far in the set."""


@dataclass(frozen=True)
class Retune:
    """Fuse up to `threshold` bytes in the operations that are decided after this."""

    threshold: int
    process_set: int = 0


Decision = Execute | Define | Fail | AllJoined | Retune
