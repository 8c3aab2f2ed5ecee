"""Reading a ring of events while its rank writes it, or after the rank's end."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from distrun.tracing import layout
from distrun.tracing.layout import EVENT, HEADER, NAME_BITS, NAMES, PLACE, SLOTS

_EVENTS_AT, _END = HEADER + NAMES, layout.ANSWER
_EXCHANGES = (b"reduce", b"gather", b"alltoall", b"join", b"process_set", layout.MESSAGES.encode())
_MARGIN = 1024
"""The events that a reader skips beyond the oldest ones when it was too slow, as these are being overwritten."""


class Event(NamedTuple):
    """An event, as `layout` describes it. Times are nanoseconds of the host's monotonic clock."""

    begin: int
    end: int
    submitted: int
    value: int
    kind: int
    name: int
    number: int
    process_set: int
    fused: int
    """The number of operations that were executed together."""


def events(records: bytes) -> Iterator[Event]:
    """Yield the events in the bytes that `RingReader.read` has returned."""
    for begin, end, submitted, value, kind_and_name, number, process_set, count, _ in EVENT.iter_unpack(records):
        kind, name = kind_and_name >> NAME_BITS, kind_and_name & ((1 << NAME_BITS) - 1)
        yield Event(begin, end, submitted, value, kind, name, number, process_set, count)


class RingReader:
    """A reader of a ring, which remembers how far it has read."""

    def __init__(self, ring: int | mmap.mmap) -> None:
        """Args: a descriptor, which may be closed afterwards, or the memory of a ring of this process."""
        self._map = mmap.mmap(ring, layout.SIZE, prot=mmap.PROT_READ) if isinstance(ring, int) else ring
        self.memory = memoryview(self._map)
        self._next = 1
        self._names_read = 0
        self._has_restarted = False

    @property
    def names_end(self) -> int:
        """The bytes of names so far."""
        return int.from_bytes(self.memory[layout.NAMES_END : layout.NAMES_END + 4], "little")

    def names(self) -> list[str]:
        """Return all names so far, by number. The first one, "", is for events without a name."""
        return ["", *split_names(bytes(self.memory[HEADER : HEADER + self.names_end]))]

    @property
    def is_empty(self) -> bool:
        """Whether the rank has never recorded anything, since it has not called init."""
        (first,) = PLACE.unpack_from(self.memory, _EVENTS_AT + EVENT.size)
        return not first

    @property
    def has_exchanges(self) -> bool:
        """Whether the rank has named an operation that is neither a broadcast nor a barrier."""
        names = bytes(self.memory[HEADER : HEADER + self.names_end])
        return any(word in names for word in _EXCHANGES)

    @property
    def gradients(self) -> int:
        """The digest of the rank's first gradients, or 0 if there is none. See `tracing.gradients`."""
        return int.from_bytes(self.memory[layout.GRADIENTS : layout.GRADIENTS + 8], "little")

    def newest(self) -> int:
        """Return the place of the newest event, or 0 if there is none."""
        if self.is_empty:
            return 0
        return max(int(place) for (place,) in PLACE.iter_unpack(self.memory[_EVENTS_AT:_END]))

    def restart(self, most: int) -> None:
        """Start over for a recipient that knows nothing yet: with all names, and at most `most` of the newest events.

        The first event is then the one of joining the present world. It is needed since operations are compared by the
        number of their world, and each rank records only its own joining.
        """
        self._names_read = 0
        self._has_restarted = True
        self._next = max(1, self.newest() - most + 1)

    def new_names(self) -> bytes:
        """Return the names since the last call, for `split_names`."""
        start, self._names_read = self._names_read, self.names_end
        return bytes(self.memory[HEADER + start : HEADER + self._names_read])

    def read(self, most: int = SLOTS) -> bytes:
        """Return the events since the last call, at most `most`, for `events`."""
        parts: list[bytes] = []
        while most > 0:
            slot = self._next % SLOTS
            span = min(most, SLOTS - slot, 2048)
            start = _EVENTS_AT + EVENT.size * slot
            block = bytes(self.memory[start : start + EVENT.size * span])
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
        """Return an event, which is no longer in the ring, of joining the world that `records` begin in."""
        present = int.from_bytes(self.memory[layout.WORLD : layout.WORLD + 4], "little")
        number = next((event.number - 1 for event in events(records) if event.kind == layout.GENERATION), present)
        begin = next(events(records)).begin
        return EVENT.pack(begin, 0, 0, 0, layout.GENERATION << NAME_BITS, number, 0, 0, 0) if number else b""

    def last(self, most: int) -> bytes:
        """Return at most `most` of the newest events, whether or not they were read before, for `events`."""
        other = RingReader(self._map)
        other._next = max(1, self.newest() - most + 1)
        return other.read()

    def _count_whole(self, block: bytes) -> int:
        """Return the number of events at the start of a block that are complete and not overwritten."""
        for count, (place,) in enumerate(PLACE.iter_unpack(block)):
            if place != self._next + count:
                return count
        return len(block) // EVENT.size

    def _is_overtaken(self, block: bytes) -> bool:
        """Whether the next event has been overwritten. If so, skip to the oldest one that is safe for a while."""
        (place,) = PLACE.unpack_from(block)
        if place <= self._next:
            return False
        self._next = max(self._next, place - SLOTS + _MARGIN)
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
    """Return events from a clock that is `offset` nanoseconds ahead of this one, in this clock's times."""
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
