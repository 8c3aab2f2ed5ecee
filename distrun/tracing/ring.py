"""Writing events into a ring: about half a microsecond each, from any thread, without a lock."""

from __future__ import annotations

import itertools
import mmap
import time
from collections.abc import Sequence
from typing import Protocol

from distrun.tracing import layout
from distrun.tracing.layout import CYCLE, DONE, EVENT, HEADER, HELD, NAME_BITS, NAMES, SLOTS, STEP, WAITED, WAITING
from distrun.tracing.reader import RingReader

_EVENTS_AT = HEADER + NAMES
_pack = EVENT.pack_into
_now = time.monotonic_ns
_KNOWN_BATCHES = 4096

_MOST = 0xFFFF  # the largest number of 16 bits

_Batch = tuple[int, int, int, int, list[int]]
"""The name, bytes, process set, number and counter of operations that are executed together."""


class Request(Protocol):
    """The terms that ranks agree on. See `distrun.runtime.operations.request`."""

    @property
    def process_set(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


class Operation(Protocol):
    """The facts about an operation of this rank that a ring records. The runtime's handles provide them."""

    @property
    def request(self) -> Request: ...
    @property
    def label(self) -> str:
        """The operation's name in messages, without its place in the order."""

    cache_id: int
    submitted: int
    """When it was submitted to the coordinator, in nanoseconds."""


class Ring:
    """The ring of this process, for writing."""

    def __init__(self, fd: int | None = None) -> None:
        """Map the ring behind a descriptor or, given None, create one that only this process sees."""
        self.memory = mmap.mmap(-1 if fd is None else fd, layout.SIZE)
        self._memory = memoryview(self.memory)
        earlier = RingReader(self.memory)  # another process may have written to this ring before
        self._names = {name: number for number, name in enumerate(earlier.names())}
        self._names_end = earlier.names_end
        self._places = itertools.count(earlier.newest() + 1)
        self._counters: dict[int, list[int]] = {}  # by name: the number of times that it was done in this world
        self._batches: dict[tuple[int, int, int], _Batch] = {}
        self.steps = 0
        """The number of completed training steps."""
        self._infers_steps = True
        self._anchor = 0
        self.generation = 0
        """The world that this process is in, from `begin_generation`. 0: none yet."""
        self.marks_cycles = False
        """Whether `cycle` should be called."""
        if fd is None:
            self.memory[: len(layout.MAGIC)] = layout.MAGIC

    # What happens -----------------------------------------------------------------------------------------------------

    def enter(self, state: int, value: int = 0) -> None:
        """Record that the main thread enters a state, one of `layout.STATES`."""
        place = next(self._places)
        _pack(self._memory, _at(place), _now(), 0, 0, value, state << NAME_BITS, 0, 0, 0, place)

    def step_done(self, samples: int = 0) -> None:
        """Record that a step of the training is done. `samples` is 0 if it is not known."""
        self._infers_steps = False
        self._record_step(samples)

    def _record_step(self, samples: int) -> None:
        self.steps += 1
        place = next(self._places)
        _pack(self._memory, _at(place), _now(), 0, 0, samples, STEP << NAME_BITS, self.steps, 0, 0, place)

    def held(self, label: str) -> None:
        """Record that an operation was submitted, and the coordinator will get it later."""
        name, place = self._name(label), next(self._places)
        _pack(self._memory, _at(place), _now(), 0, 0, 0, HELD << NAME_BITS | name, 0, 0, 0, place)

    def waiting(self, label: str) -> int:
        """Record that a thread begins to sleep until an operation is done. Returns the time, for `waited`."""
        began, name, place = _now(), self._name(label), next(self._places)
        _pack(self._memory, _at(place), began, 0, 0, 0, WAITING << NAME_BITS | name, 0, 0, 0, place)
        return began

    def waited(self, began: int) -> None:
        """Record the end of a sleep. `began` is the result of `waiting`."""
        place = next(self._places)
        _pack(self._memory, _at(place), began, _now(), 0, 0, WAITED << NAME_BITS, 0, 0, 0, place)

    def done(self, operations: Sequence[Operation], began: int) -> None:
        """Record that operations that were executed together are done. The execution began at `began`."""
        first = operations[0]
        known = self._batches.get((first.cache_id, operations[-1].cache_id, len(operations)))
        name, nbytes, process_set, count, counter = known or self._batch(operations)
        counter[0] = number = counter[0] + 1
        if self._infers_steps and number > 1 and (name == self._anchor or not self._anchor):
            self._anchor = name  # no framework tells of steps: what first comes a second time comes once per step
            self._record_step(0)
        at = _EVENTS_AT + EVENT.size * ((place := next(self._places)) % SLOTS)
        kind = DONE << NAME_BITS | name
        _pack(self._memory, at, began, _now(), first.submitted, nbytes, kind, number, process_set, count, place)

    def _batch(self, operations: Sequence[Operation]) -> _Batch:
        """Return the facts that stay the same for these operations. They are kept, since training repeats itself."""
        first, last = operations[0], operations[-1]
        name = self._name(first.label)
        nbytes = sum(operation.request.nbytes for operation in operations)
        counter = self._counters.setdefault(name, [0])
        batch = name, nbytes, first.request.process_set & _MOST, min(len(operations), _MOST), counter
        if first.cache_id >= 0 <= last.cache_id and len(self._batches) < _KNOWN_BATCHES:
            self._batches[first.cache_id, last.cache_id, len(operations)] = batch
        return batch

    def cycle(self, decisions: int) -> None:
        """Record that this number of the coordinator's decisions arrived."""
        place, count = next(self._places), min(decisions, _MOST)
        _pack(self._memory, _at(place), _now(), 0, 0, 0, CYCLE << NAME_BITS, 0, 0, count, place)

    def remark(self, text: str) -> None:
        """Record a text for people. Only its first 200 bytes are kept."""
        name, place = self._name(text), next(self._places)
        _pack(self._memory, _at(place), _now(), 0, 0, 0, layout.REMARK << NAME_BITS | name, 0, 0, 0, place)

    def mention(self, name: str) -> None:
        """Record a name without an event."""
        self._name(name)

    def begin_generation(self, number: int) -> None:
        """Record that this process has joined a world. Cache ids, and the counts of operations, begin again."""
        self._counters, self._batches = {}, {}
        self._anchor = 0
        self.generation = number
        self._memory[layout.WORLD : layout.WORLD + 4] = number.to_bytes(4, "little")
        place = next(self._places)
        kind = layout.GENERATION << NAME_BITS
        _pack(self._memory, _at(place), _now(), 0, 0, 0, kind, number, 0, 0, place)

    def tell_gradients(self, digest: int) -> None:
        """Write the digest of this rank's first gradients. See `tracing.gradients`."""
        self._memory[layout.GRADIENTS : layout.GRADIENTS + 8] = digest.to_bytes(8, "little")

    # Names ------------------------------------------------------------------------------------------------------------

    def _name(self, name: str) -> int:
        """Return the number of a name, or 0 if there is no room for another name."""
        known = self._names.get(name)
        if known is not None:
            return known
        raw = name.encode(errors="replace")[:200]
        end = self._names_end + layout.NAME_LENGTH.size + len(raw)
        if end > NAMES:
            return 0
        start = HEADER + self._names_end
        self._memory[start : HEADER + end] = layout.NAME_LENGTH.pack(len(raw)) + raw
        self._names_end = end
        self._memory[layout.NAMES_END : layout.NAMES_END + 4] = end.to_bytes(4, "little")
        number = self._names[name] = len(self._names)
        return number


def _at(place: int) -> int:
    return _EVENTS_AT + EVENT.size * (place % SLOTS)
