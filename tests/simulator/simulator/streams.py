"""Streams with a worker thread each, events as CUDA has them, and the order between streams.

Every stream counts its operations and knows up to which one it is behind each other stream: operations that are queued
at the same time, touch the same memory and are ordered by nothing are a race, whether or not it goes well this time.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from simulator import blocks, machine
from simulator.blocks import Block, Range
from simulator.errors import (
    CAPTURE_IMPLICIT,
    CAPTURED_EVENT,
    INVALID_HANDLE,
    LAUNCH_FAILURE,
    NOT_READY,
    CUDARuntimeError,
)
from simulator.machine import changed, lock
from simulator.recorder import violate

if TYPE_CHECKING:
    from simulator.capture import Capture

_REUSE = "the work of the owner of freed memory"
_LEGACY = (0, 1)  # both mean the legacy default stream
_handles = itertools.count(0x5EAD0000, 0x100)
_random = random.Random(f"{os.environ.get('SIMULATED_GPU_SEED', '0')} {os.environ.get('DISTRUN_RANK', '0')}")


class Operation:
    """A queued operation. `make` is called when it is queued, and returns the function that the worker calls.

    `reads` and `writes` are the memory it uses as far as one can tell; `blocks`, further allocations that it may use.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Callable[[], None]],
        reads: Sequence[Range] = (),
        writes: Sequence[Range] = (),
        others: set[Block] | None = None,
    ) -> None:
        self.name = name
        self.make = make
        self.reads = list(reads)
        self.writes = list(writes)
        self.others = others or set()
        self.blocks: set[Block] = set()
        self.sequence = 0

    def check(self) -> None:
        """Check the memory it uses, as it is being queued."""
        found = blocks.check(self.name, [*self.reads, *self.writes])
        self.blocks = (found or set()) | self.others
        if found is None:
            self.reads, self.writes, self.make = [], [], lambda: _nothing


class Record:
    """One recording of an event: done when what was queued before is done."""

    def __init__(self, done: bool = False, known: dict[int, int] | None = None, capture: Capture | None = None) -> None:
        self.done = done
        self.time = time.perf_counter()  # until it is done, of the call
        self.known = known or {}
        self.capture = capture

    def wait(self) -> None:
        with changed:
            changed.wait_for(lambda: self.done)


class Event:
    """A handle with its latest record; one that was never recorded counts as done."""

    def __init__(self, device: int, is_timed: bool) -> None:
        self.handle = next(_handles)
        self.device = device
        self.is_timed = is_timed
        self.record: Record | None = None


class Stream:
    """A queue and, but for the legacy default stream, a thread that works it off."""

    def __init__(self, device: int, blocking: bool, handle: int | None = None) -> None:
        self.handle = next(_handles) if handle is None else handle
        self.device = device
        self.blocking = blocking
        self.capture: Capture | None = None
        self.pending: deque[tuple[Operation, Callable[[], None]]] = deque()
        self.known: dict[int, int] = {}  # the last operation of each stream that what is queued next comes after
        self._closed = False
        if not self.legacy:
            # Not later, with `lock` held: the new thread may first have to collect garbage, which takes it.
            threading.Thread(target=self._work, name=f"stream {self.handle:#x}", daemon=True).start()

    @property
    def legacy(self) -> bool:
        """Whether this is the legacy default stream, which is synchronous with the host."""
        return self.handle in _LEGACY

    # Queueing ---------------------------------------------------------------------------------------------------------

    def queue(self, operation: Operation) -> None:
        """Queue an operation; on the legacy default stream, do it."""
        with changed:
            if self.capture is not None:
                self.capture.add(self, operation)
                return
            operation.check()
            self._look_for_races(operation)
            if not self.legacy:
                self._append(operation)
                return
        self.drain_others()
        _run(operation.make(), self.device, operation.name)

    def _append(self, operation: Operation) -> None:
        operation.sequence = self.known[self.handle] = self.known.get(self.handle, 0) + 1
        self.pending.append((operation, operation.make()))
        _busy.add(self)
        changed.notify_all()

    def _look_for_races(self, operation: Operation) -> None:
        for stream, other in pending():
            if stream is self or self.is_behind(stream, other):
                continue
            found = blocks.overlap(operation.writes, [*other.reads, *other.writes])
            found = found or blocks.overlap(operation.reads, other.writes)
            if other.name == _REUSE:
                found = found or blocks.overlap(
                    [(block.address, block.nbytes) for block in operation.others], other.writes
                )
            if found:
                violate(
                    f"race: {operation.name} on stream {self.handle:#x} and {other.name}, which stream "
                    f"{stream.handle:#x} has still to do, use the same {found[1]} bytes at {found[0]:#x}, "
                    "and neither waits for the other"
                )

    def is_behind(self, stream: Stream, operation: Operation) -> bool:
        """Whether what is queued here next comes after an operation that is queued on `stream`."""
        return stream.blocking if self.legacy else self.known.get(stream.handle, 0) >= operation.sequence

    def record(self) -> Record:
        """Return a record behind everything queued so far."""
        with changed:
            if self.capture is not None:
                return self.capture.record(self)
            record = Record(self.legacy)
            if not self.legacy:
                self._append(Operation("an event", lambda: lambda: _finish(record)))
                record.known = dict(self.known)
        if self.legacy:
            self.drain_others()
        return record

    def wait(self, record: Record) -> None:
        """Let what is queued after this come after a record."""
        with changed:
            if record.capture is not None or self.capture is not None:
                from simulator.capture import join

                join(self, record)
                return
            if not self.legacy:
                for stream, sequence in record.known.items():
                    self.known[stream] = max(sequence, self.known.get(stream, 0))
                if not record.done:
                    self._append(Operation("waiting for an event", lambda: record.wait))
                return
        record.wait()

    def drain_others(self) -> None:
        """Wait for blocking streams, behind all of whose work the legacy default stream comes."""
        with changed:
            if any(stream.capture and stream.blocking and stream.device == self.device for stream in _streams.values()):
                raise CUDARuntimeError(CAPTURE_IMPLICIT)
            waited = [(stream, stream.pending[-1][0]) for stream in list(_busy) if stream.blocking and stream.pending]
            for stream, last in waited:
                if stream.device == self.device:
                    changed.wait_for(lambda stream=stream, last=last: all(op is not last for op, _ in stream.pending))

    def synchronize(self) -> None:
        """Let the host wait until all that is queued is done."""
        self.record().wait()

    # Working ----------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with changed:
                changed.wait_for(lambda: self.pending or self._closed)
                if not self.pending:
                    return
                operation, run = self.pending[0]
            _dawdle()
            _run(run, self.device, operation.name)
            del run
            with changed:
                self.pending.popleft()
                if not self.pending:
                    _busy.discard(self)
                changed.notify_all()

    def recycle(self, block: Block) -> bool:
        """Overwrite freed memory, as its next owner would, once all work queued here is done.

        Returns:
            Whether the memory can be handed out again.
        """
        with changed:
            if (
                self.capture is not None
                or self._closed
                or (self.legacy and any(block in op.blocks for _, op in pending()))
            ):
                return False
            if self.pending:
                fill = lambda: block.memory.fill(blocks.FILLING)  # noqa: E731
                where = [(block.address, block.nbytes)]
                self._append(Operation(_REUSE, lambda: fill, writes=where))
            else:
                block.memory.fill(blocks.FILLING)
            return True

    def close(self) -> None:
        """Allow no more operations; those that are queued will be done."""
        with changed:
            self._closed = True
            changed.notify_all()


def _nothing() -> None:
    """Do nothing, in place of an operation that would crash this process."""


def _finish(record: Record) -> None:
    with changed:
        record.time = time.perf_counter()
        record.done = True
        changed.notify_all()


def _run(run: Callable[[], None], device: int, name: str) -> None:
    try:
        run()
    except Exception:
        traceback.print_exc()
        print(f"simulated GPU: {name} has failed", file=sys.stderr, flush=True)
        machine.break_device(LAUNCH_FAILURE, device)


def _dawdle() -> None:
    """Take a little time, most often very little, so that unordered operations happen in any order."""
    jitter = float(os.environ.get("SIMULATED_GPU_JITTER", "0"))
    if jitter:
        time.sleep(jitter * 4e-6 * _random.random() ** 4)


# Handles --------------------------------------------------------------------------------------------------------------

_streams: dict[int, Stream] = {}
_events: dict[int, Event] = {}
_defaults: dict[int, Stream] = {}  # by device
_busy: set[Stream] = set()


def pending() -> Iterator[tuple[Stream, Operation]]:
    """Return all operations that are queued and not done."""
    for stream in list(_busy):
        for operation, _ in list(stream.pending):
            yield stream, operation


def create_stream(blocking: bool) -> int:
    """Make a new stream of the current device."""
    stream = Stream(machine.touch(), blocking)
    with lock:
        _streams[stream.handle] = stream
    return stream.handle


def stream_of(handle: int, anywhere: bool = False) -> Stream:
    """Return the stream of a handle; of the current device, unless `anywhere`.

    Raises:
        CUDARuntimeError: there is none, or it belongs to another device than the current one.
    """
    device = machine.touch()
    if handle in _LEGACY:
        with lock:
            return _defaults.setdefault(device, Stream(device, True, 0))
    stream = _streams.get(handle)
    if stream is None or (stream.device != device and not anywhere):
        raise CUDARuntimeError(INVALID_HANDLE)
    return stream


def destroy_stream(handle: int) -> None:
    """Forget a stream; operations queued on it will be done."""
    with lock:
        stream = _streams.pop(handle, None)
    if stream is None:
        raise CUDARuntimeError(INVALID_HANDLE)
    stream.close()


def create_event(is_timed: bool) -> int:
    """Make a new event of the current device."""
    event = Event(machine.touch(), is_timed)
    with lock:
        _events[event.handle] = event
    return event.handle


def event_of(handle: int) -> Event:
    """Return the event of a handle, which must belong to the current device."""
    device = machine.touch()
    event = _events.get(handle)
    if event is None or event.device != device:
        raise CUDARuntimeError(INVALID_HANDLE)
    return event


def destroy_event(handle: int) -> None:
    """Forget an event; streams that wait for its record still do."""
    with lock:
        if _events.pop(handle, None) is None:
            raise CUDARuntimeError(INVALID_HANDLE)


def query(record: Record | None) -> int:
    """Return the status of a record, as cudaEventQuery says it."""
    if record is None:
        return 0
    if record.capture is not None:
        return CAPTURED_EVENT
    return 0 if record.done else NOT_READY
