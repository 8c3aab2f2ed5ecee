"""The phases of operations: waiting for the last rank, negotiating that all have submitted them, and moving data."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from distrun.tracing.reader import Event
from distrun.tracing.timeline.slices import COMMUNICATION, MOVING, NEGOTIATING, Slice, waiting_for

_TRIFLE = 20_000
_REMEMBERED = 256


class Key(NamedTuple):
    """The key of an operation, the same on all ranks."""

    generation: int
    process_set: int
    name: str
    number: int


class LastSubmitters:
    """Remembers the last rank for each recent operation."""

    def __init__(self) -> None:
        self._new: dict[Key, tuple[int, int]] = {}
        self._old: dict[Key, tuple[int, int]] = {}

    def note(self, key: Key, rank: int, submitted: int) -> None:
        """Note when a rank submitted an operation."""
        known = self._new.get(key) or self._old.get(key)
        if known is None or submitted > known[0]:
            self._new[key] = submitted, rank

    def last(self, key: Key) -> tuple[int, int]:
        """Return the time of an operation's last submission, and its rank. (0, -1) if it is not known."""
        return self._new.get(key) or self._old.get(key) or (0, -1)

    def forget_old(self) -> None:
        """Forget what was noted before the previous call."""
        self._new, self._old = {}, self._new


class Travel:
    """The operations of one rank, in the order of execution."""

    def __init__(self, rank: int, submitters: LastSubmitters) -> None:
        self._rank = rank
        self._submitters = submitters
        self._ended = 0  # the end of the last operation
        self._recent: deque[Slice] = deque(maxlen=_REMEMBERED)
        self._operation_ended: dict[str, int] = {}

    def of(self, event: Event, key: Key) -> list[Slice]:
        """Return the slices of an operation for the row of all operations. They begin after the end of the last one."""
        parts = self._parts(event, key, self._ended)
        self._ended = max(self._ended, event.end)
        self._recent.extend(parts)
        return parts

    def of_operation(self, event: Event, key: Key) -> list[Slice]:
        """Return the slices of an operation for its own row."""
        parts = self._parts(event, key, self._operation_ended.get(key.name, 0))
        self._operation_ended[key.name] = max(self._operation_ended.get(key.name, 0), event.end)
        return parts

    def within(self, begin: int, end: int) -> Iterator[Slice]:
        """Yield the parts of the slices from `of` that are within a span of time."""
        for part in self._recent:
            if part.end > begin and part.begin < end:
                yield part._replace(begin=max(begin, part.begin), end=min(end, part.end))

    def _parts(self, event: Event, key: Key, earliest: int) -> list[Slice]:
        """Return the slices for waiting, negotiating and moving, each if there is any."""
        begin = max(event.begin, earliest)
        since = min(max(event.submitted or begin, earliest), begin)
        about = (("operation", key.name), ("number", key.number))
        parts = []
        last, rank = self._submitters.last(key)
        if rank not in (-1, self._rank) and last > since:
            last = min(last, begin)
            parts.append(Slice(COMMUNICATION, since, last, waiting_for(rank), about))
            since = last
        if begin - since > _TRIFLE:
            parts.append(Slice(COMMUNICATION, since, begin, NEGOTIATING, about))
        if event.end > begin:
            count = (("operations", event.fused),) if event.fused > 1 else ()
            parts.append(Slice(COMMUNICATION, begin, event.end, MOVING, (*about, ("bytes", event.value), *count)))
        return parts
