"""Reading a ring of events beside the rank that writes it, or after its end."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from distrun.tracing import layout
from distrun.tracing.layout import EVENT, HEADER, NAME_BITS, NAMES, PLACE, SLOTS

_EVENTS_AT, _END = HEADER + NAMES, layout.ANSWER
_MARGIN = 1024
"""Events by which a reader that was too slow jumps ahead of the oldest ones, which are being overwritten."""


class Event(NamedTuple):
    """An event as `layout` describes it; times in nanoseconds of the host's monotonic clock."""

    begin: int
    end: int
    submitted: int
    value: int
    kind: int
    name: int
    number: int
    process_set: int
    fused: int
    """The operations that travelled together."""


def events(records: bytes) -> Iterator[Event]:
    """Return the events in what `RingReader.read` has returned."""
    for begin, end, submitted, value, kind_and_name, number, process_set, count, _ in EVENT.iter_unpack(records):
        kind, name = kind_and_name >> NAME_BITS, kind_and_name & ((1 << NAME_BITS) - 1)
        yield Event(begin, end, submitted, value, kind, name, number, process_set, count)


class RingReader:
    """One reader of a ring, who remembers how far it has read."""

    def __init__(self, ring: int | mmap.mmap) -> None:
        """Args: a descriptor, which is not needed afterwards, or the memory of a ring of this process."""
        self._map = mmap.mmap(ring, layout.SIZE, prot=mmap.PROT_READ) if isinstance(ring, int) else ring
        self._memory = memoryview(self._map)
        self._next = 1
        self._names_read = 0
        self._has_restarted = False
        self.lost = 0
        """Events that were overwritten before they were read."""

    @property
    def names_end(self) -> int:
        """Bytes of names that there are."""
        return int.from_bytes(self._memory[layout.NAMES_END : layout.NAMES_END + 4], "little")

    def names(self) -> list[str]:
        """Return all names so far; the place in the list is the number. The first is that of events without one."""
        return ["", *split_names(bytes(self._memory[HEADER : HEADER + self.names_end]))]

    @property
    def memory(self) -> memoryview:
        """The memory of the ring."""
        return self._memory

    @property
    def is_empty(self) -> bool:
        """Whether the rank has recorded nothing, ever: it has not called init."""
        (first,) = PLACE.unpack_from(self._memory, _EVENTS_AT + EVENT.size)
        return not first

    def restart(self, most: int) -> None:
        """Begin again for a reader who knows nothing yet: with all names, and the newest events, so many at most.

        The first event is that by which the rank had joined the world of the others, for operations of ranks are
        compared by the number of their world, and each rank has events of its own number.
        """
        self._names_read = 0
        self._has_restarted = True
        newest = max(place for (place,) in PLACE.iter_unpack(self._memory[_EVENTS_AT:_END]))
        self._next = max(1, newest - most + 1)

    def new_names(self) -> bytes:
        """Return the names since the last call, for `split_names`."""
        start, self._names_read = self._names_read, self.names_end
        return bytes(self._memory[HEADER + start : HEADER + self._names_read])

    def read(self, most: int = SLOTS) -> bytes:
        """Return the events since the last call, at most so many, for `events`."""
        parts: list[bytes] = []
        while most > 0:
            slot = self._next % SLOTS
            span = min(most, SLOTS - slot, 2048)
            start = _EVENTS_AT + EVENT.size * slot
            block = bytes(self._memory[start : start + EVENT.size * span])
            count = self._count_whole(block)
            if not count and not self._is_overtaken(block):
                break
            parts.append(block[: EVENT.size * count])
            self._next += count
            most -= max(count, 1)
            if 0 < count < span and not self._is_overtaken(block[EVENT.size * count :]):
                break
        records = b"".join(parts)
        if records and self._has_restarted:
            self._has_restarted = False
            return self._joined(records) + records
        return records

    def _joined(self, records: bytes) -> bytes:
        """Return the event, not read any more, by which the rank had joined the world in which these events begin."""
        present = int.from_bytes(self._memory[layout.WORLD : layout.WORLD + 4], "little")
        number = next((event.number - 1 for event in events(records) if event.kind == layout.GENERATION), present)
        begin = next(events(records)).begin
        return EVENT.pack(begin, 0, 0, 0, layout.GENERATION << NAME_BITS, number, 0, 0, 0) if number else b""

    def last(self, most: int) -> bytes:
        """Return the newest events, at most so many, whatever has been read, for `events`."""
        other = RingReader(self._map)
        newest = max(place for (place,) in PLACE.iter_unpack(self._memory[_EVENTS_AT:_END]))
        other._next = max(1, newest - most + 1)
        return other.read()

    def _count_whole(self, block: bytes) -> int:
        """Return the number of events at the beginning of a block that have been written and not overwritten."""
        for count, (place,) in enumerate(PLACE.iter_unpack(block)):
            if place != self._next + count:
                return count
        return len(block) // EVENT.size

    def _is_overtaken(self, block: bytes) -> bool:
        """Whether the next event has been overwritten; then the reader goes on with the oldest that will stay."""
        (place,) = PLACE.unpack_from(block)
        if place <= self._next:
            return False
        target = place - SLOTS + _MARGIN
        self.lost += max(0, target - self._next)
        self._next = max(self._next, target)
        return True


def split_names(raw: bytes) -> list[str]:
    """Return the names in a piece of the ring's memory."""
    found: list[str] = []
    position = 0
    while position + layout.NAME_LENGTH.size <= len(raw):
        (length,) = layout.NAME_LENGTH.unpack_from(raw, position)
        position += layout.NAME_LENGTH.size
        found.append(raw[position : position + length].decode(errors="replace"))
        position += length
    return found


def shifted(recorded: Iterable[Event], offset: int) -> Iterable[Event]:
    """Return events of a clock that is ahead of ours by so many nanoseconds, with our times."""
    if not offset:
        return recorded
    return (
        event._replace(
            begin=event.begin - offset,
            end=event.end and event.end - offset,
            submitted=event.submitted and event.submitted - offset,
        )
        for event in recorded
    )
