"""Stream capture: what is queued becomes a graph, which can be launched any number of times."""

from __future__ import annotations

import threading
from typing import Any

from simulator import machine, streams
from simulator.errors import (
    CAPTURE_INVALIDATED,
    CAPTURE_ISOLATION,
    CAPTURE_MERGE,
    CAPTURE_UNJOINED,
    CAPTURE_UNMATCHED,
    CAPTURE_UNSUPPORTED,
    CUDARuntimeError,
)
from simulator.machine import changed
from simulator.streams import Operation, Record, Stream

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
"""The modes of a thread during captures, numbered as in cudaStreamCaptureMode."""


class _Thread(threading.local):
    mode = GLOBAL


_thread = _Thread()
_captures: set[Capture] = set()


class Capture:
    """A capture that has begun, with the streams that have joined."""

    def __init__(self, origin: Stream, mode: int) -> None:
        self.origin = origin
        self.mode = mode
        self.thread = threading.get_ident()
        self.operations: list[Operation] = []
        self.streams: list[Stream] = []
        self.broken = False
        self._known: dict[int, dict[int, int]] = {}
        self.take(origin)

    def take(self, stream: Stream) -> None:
        self.streams.append(stream)
        self._known[stream.handle] = {}
        stream.capture = self

    def add(self, stream: Stream, operation: Operation) -> None:
        if self.broken:
            raise CUDARuntimeError(CAPTURE_INVALIDATED)
        known = self._known[stream.handle]
        known[stream.handle] = known.get(stream.handle, 0) + 1
        self.operations.append(operation)

    def record(self, stream: Stream) -> Record:
        if self.broken:
            raise CUDARuntimeError(CAPTURE_INVALIDATED)
        return Record(known=dict(self._known[stream.handle]), capture=self)

    def merge(self, stream: Stream, record: Record) -> None:
        known = self._known[stream.handle]
        for other, sequence in record.known.items():
            known[other] = max(sequence, known.get(other, 0))

    def spoil(self, status: int) -> CUDARuntimeError:
        """Invalidate the capture; return the error to raise."""
        self.broken = True
        return CUDARuntimeError(status)

    @property
    def unjoined(self) -> bool:
        origin = self._known[self.origin.handle]
        return any(self._known[s.handle].get(s.handle, 0) > origin.get(s.handle, 0) for s in self.streams)


class Graph:
    """The captured operations."""

    def __init__(self, operations: list[Operation], stream: Stream) -> None:
        self.operations = operations
        self._stream = stream

    def launch(self, stream: Any = None) -> None:
        """Queue all of it in order on a stream (an object with `ptr`, or a handle), by default the capture's."""
        target = self._stream if stream is None else streams.stream_of(getattr(stream, "ptr", stream))
        for operation in self.operations:
            target.queue(Operation(operation.name, operation.make, operation.reads, operation.writes, operation.others))


def begin_capture(stream: Any, mode: int = GLOBAL) -> None:
    """Begin to capture what is queued on a stream: an object with `ptr`, or a handle."""
    with changed:
        origin = streams.stream_of(getattr(stream, "ptr", stream))
        if origin.legacy or origin.capture is not None:
            raise CUDARuntimeError(CAPTURE_UNSUPPORTED)
        _captures.add(Capture(origin, mode))


def end_capture(stream: Any) -> Graph:
    """End the capture that has begun on this stream.

    Raises:
        CUDARuntimeError: it was spoilt, or a stream that joined was not made to be waited for.
    """
    with changed:
        origin = streams.stream_of(getattr(stream, "ptr", stream))
        capture = origin.capture
        if capture is None or capture.origin is not origin:
            raise CUDARuntimeError(CAPTURE_UNMATCHED)
        _captures.discard(capture)
        for each in capture.streams:
            each.capture = None
        if capture.broken:
            raise CUDARuntimeError(CAPTURE_INVALIDATED)
        if capture.unjoined:
            raise CUDARuntimeError(CAPTURE_UNJOINED)
        return Graph(capture.operations, origin)


def join(stream: Stream, record: Record) -> None:
    """Let a stream wait for an event, where one of them is captured."""
    ours, theirs = stream.capture, record.capture
    if theirs is None:
        assert ours is not None
        raise ours.spoil(CAPTURE_ISOLATION)
    if theirs not in _captures:
        raise CUDARuntimeError(CAPTURE_INVALIDATED)
    if stream.legacy:
        raise theirs.spoil(CAPTURE_UNSUPPORTED)
    if ours is None:
        theirs.take(stream)
    elif ours is not theirs:
        ours.broken = True
        raise theirs.spoil(CAPTURE_MERGE)
    theirs.merge(stream, record)


def unsafe(spoils: bool = True) -> int:
    """Return 0 before a call that is safe now, else the error: CUDA forbids it during a capture, which is spoilt."""
    with changed:
        mine = [c for c in _captures if c.thread == threading.get_ident() and c.mode != RELAXED]
        others = [c for c in _captures if c.mode == GLOBAL]
        forbidding = {RELAXED: [], THREAD_LOCAL: mine, GLOBAL: mine + others}[_thread.mode]
        for capture in forbidding:
            capture.broken |= spoils
    return CAPTURE_UNSUPPORTED if forbidding else 0


def check_unsafe() -> None:
    """Raise the error of `unsafe`, if there is one."""
    if status := unsafe():
        raise CUDARuntimeError(status)


def exchange_mode(mode: int) -> int:
    """Set the calling thread's mode; return the one before."""
    before, _thread.mode = _thread.mode, mode
    return before


def is_capturing(handle: int) -> bool:
    """Whether a stream is being captured.

    Raises:
        CUDARuntimeError: it is the legacy default stream and a blocking stream is being captured.
        RuntimeError: the capture is invalid, as cupy says it.
    """
    stream = streams.stream_of(handle)
    if stream.legacy:
        with changed:
            if any(s.blocking and s.device == machine.current_device() for c in _captures for s in c.streams):
                raise CUDARuntimeError(906)
        return False
    if stream.capture is not None and stream.capture.broken:
        raise RuntimeError("the stream was capturing, but an error has invalidated the capture sequence")
    return stream.capture is not None
