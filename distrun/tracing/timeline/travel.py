"""The way of operations: waiting for the last rank, agreeing that all have them, and moving."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from distrun.tracing.reader import Event
from distrun.tracing.timeline.slices import COMMUNICATION, MOVING, NEGOTIATING, Slice, waiting_for
from distrun.tracing.timeline.stragglers import Key, LastSubmitters

_TRIFLE = 20_000
_REMEMBERED = 256


class Travel:
    """The operations of one rank, in the order in which they were executed."""

    def __init__(self, rank: int, submitters: LastSubmitters) -> None:
        self._rank = rank
        self._submitters = submitters
        self._ended = 0  # when the operation before ended
        self._recent: deque[Slice] = deque(maxlen=_REMEMBERED)
        self._operation_ended: dict[str, int] = {}

    def of(self, event: Event, key: Key) -> list[Slice]:
        """Return the slices of an operation on the row of all of them, where it begins when the one before is over."""
        parts = self._parts(event, key, self._ended)
        self._ended = max(self._ended, event.end)
        self._recent.extend(parts)
        return parts

    def of_operation(self, event: Event, key: Key) -> list[Slice]:
        """Return its slices on a row of its own."""
        parts = self._parts(event, key, self._operation_ended.get(key.name, 0))
        self._operation_ended[key.name] = max(self._operation_ended.get(key.name, 0), event.end)
        return parts

    def within(self, begin: int, end: int) -> Iterator[Slice]:
        """Return what of the slices of `of` is in a span of time."""
        for part in self._recent:
            if part.end > begin and part.begin < end:
                yield part._replace(begin=max(begin, part.begin), end=min(end, part.end))

    def _parts(self, event: Event, key: Key, earliest: int) -> list[Slice]:
        """Return waiting, negotiating and moving, of which each may be missing."""
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
