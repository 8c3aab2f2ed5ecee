"""A rank's side of simulated NCCL: calls become operations of a stream, which wait there until all ranks have come."""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulator import blocks, machine, streams
from simulator.blocks import Range
from simulator.errors import CUDARuntimeError
from simulator.hub import ID_BYTES, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, Hub, Link, connect, warn
from simulator.recorder import violate
from simulator.reductions import is_op, is_type, itemsize
from simulator.streams import Operation, Stream

SYSTEM_ERROR, INTERNAL_ERROR = 2, 3
_handles = itertools.count(0xC0330000, 0x100)


class Refused(Exception):  # noqa: N818
    """A call fails with an ncclResult_t."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def version() -> int:
    """Return NCCL's version as ncclGetVersion gives it."""
    return int(os.environ.get("SIMULATED_NCCL_VERSION", "23203"))


def unique_id() -> bytes:
    """Return the name of a new communicator, whose hub is in this process."""
    return Hub().unique_id


# Faults ---------------------------------------------------------------------------------------------------------------

_counts: dict[tuple[str, str], int] = {}


def _is_meant(variable: str, name: str, rank: int) -> bool:
    """Whether this call is the one that a variable names: `allReduce:3`, on one rank only: `allReduce:3@1`."""
    told, _, only = os.environ.get(variable, "").partition("@")
    what, _, number = told.partition(":")
    if what != name or (only and int(only) != rank):
        return False
    _counts[variable, told] = _counts.get((variable, told), 0) + 1
    return _counts[variable, told] == int(number or 1)


# One call -------------------------------------------------------------------------------------------------------------


@dataclass
class Call:
    """One call of a communicator, before it is queued."""

    communicator: Communicator
    name: str
    stream: Stream
    source: int
    target: int
    count: int
    datatype: int
    op: int = 0
    root: int = 0  # or the peer
    hangs: bool = False
    fails: bool = False

    @property
    def is_transfer(self) -> bool:
        return self.name in ("send", "recv")

    @property
    def read(self) -> Range | None:
        """The address range that this rank's part is read from."""
        nbytes, rank, size = self.count * itemsize(self.datatype), self.communicator.rank, self.communicator.size
        if self.name == "recv" or (self.name == "broadcast" and rank != self.root):
            return None
        return self.source, nbytes * size if self.name == "reduceScatter" else nbytes

    @property
    def write(self) -> Range | None:
        """The address range that this rank's result is written to."""
        nbytes, rank, size = self.count * itemsize(self.datatype), self.communicator.rank, self.communicator.size
        if self.name == "send" or (self.name == "reduce" and rank != self.root):
            return None
        return self.target, nbytes * size if self.name == "allGather" else nbytes


# Groups ---------------------------------------------------------------------------------------------------------------


class _Thread(threading.local):
    def __init__(self) -> None:
        self.depth = 0
        self.calls: list[Call] = []
        self.status = 0


_thread = _Thread()


def group_start() -> None:
    """Hold back this thread's calls that follow."""
    _thread.depth += 1


def group_end() -> None:
    """Queue the calls held back as one operation per communicator, or none of them if one has failed."""
    if not _thread.depth:
        warn("ncclGroupEnd: not in a group call.")
        raise Refused(INVALID_USAGE)
    _thread.depth -= 1
    if _thread.depth:
        return
    calls, status = _thread.calls, _thread.status
    _thread.calls, _thread.status = [], 0
    if status:
        raise Refused(status)
    for communicator in dict.fromkeys(call.communicator for call in calls):
        communicator.queue([call for call in calls if call.communicator is communicator])


# Communicators --------------------------------------------------------------------------------------------------------


class Communicator:
    """One rank of a communicator, on the device that was current when it was made."""

    def __init__(self, size: int, identity: bytes, rank: int) -> None:
        """Return when all ranks have joined."""
        if size < 1 or not 0 <= rank < size or not identity.strip(b"\0") or len(identity) != ID_BYTES:
            raise Refused(INVALID_ARGUMENT)
        self.handle = next(_handles)
        self.size, self.rank = size, rank
        self.device = machine.touch()
        self.status = 0  # an asynchronous error
        self.aborted = False
        self._outstanding = 0
        self._collectives = itertools.count()
        self._transfers: dict[tuple[int, int, str], itertools.count[int]] = {}
        self._done: dict[Any, bytes | None] = {}
        self._changed = threading.Condition()
        try:
            self._link = connect(identity)
        except OSError:
            raise Refused(REMOTE_ERROR) from None
        self._meet()

    def _meet(self) -> None:
        facts = {
            "size": self.size,
            "host": os.environ.get("DISTRUN_HOSTNAME", socket.gethostname()),
            "device": machine.bus_id(self.device),
            "process": os.getpid(),
            "version": version(),
            "shares": os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1",
        }
        self._link.send(self.rank, facts)
        answer = self._link.receive()
        if answer is None:
            raise Refused(REMOTE_ERROR)
        if answer[0] == "refused":
            warn(answer[1])
            raise Refused(INVALID_USAGE)
        threading.Thread(target=self._listen, args=(self._link,), name="simulated NCCL", daemon=True).start()

    def _listen(self, link: Link) -> None:
        while message := link.receive():
            with self._changed:
                if message[0] == "done":
                    self._done[message[1]] = message[2]
                else:
                    self._fail(*message[1:])
                self._changed.notify_all()
        with self._changed:
            if not self.aborted and os.environ.get("SIMULATED_NCCL_NETWORK") == "1":
                self._fail(REMOTE_ERROR, "the connection to the other ranks is lost")

    def _fail(self, status: int, text: str) -> None:
        warn(f"rank {self.rank}: {text}")
        self.status = self.status or status

    # Calls ------------------------------------------------------------------------------------------------------------

    def call(
        self, name: str, stream: int, source: int, target: int, count: int, datatype: int, op: int = 0, root: int = 0
    ) -> None:
        """Queue one call, or keep it for the end of the group."""
        try:
            self._call(name, stream, source, target, count, datatype, op, root)
        except Refused as refusal:
            if _thread.depth:
                _thread.status = _thread.status or refusal.status
            raise

    def _call(
        self, name: str, stream: int, source: int, target: int, count: int, datatype: int, op: int, root: int
    ) -> None:
        if not (is_type(datatype) and is_op(op) and 0 <= root < self.size):
            raise Refused(INVALID_ARGUMENT)
        if self.status:
            raise Refused(self.status)
        if _is_meant("SIMULATED_NCCL_FAIL", name, self.rank):
            raise Refused(SYSTEM_ERROR)
        try:
            queue = streams.stream_of(stream, anywhere=True)
        except CUDARuntimeError:
            raise Refused(1) from None
        if queue.device != self.device:
            violate(f"{name} on a stream of GPU {queue.device}, but the communicator belongs to GPU {self.device}")
        call = Call(self, name, queue, source, target, count, datatype, op, root)
        call.hangs = _is_meant("SIMULATED_NCCL_HANG", name, self.rank)
        call.fails = _is_meant("SIMULATED_NCCL_ASYNC", name, self.rank)
        if not count and not call.is_transfer:
            return  # NCCL discards empty collectives
        if _thread.depth:
            _thread.calls.append(call)
        else:
            self.queue([call])

    def queue(self, calls: Sequence[Call]) -> None:
        """Queue calls as one operation; if they name several streams, these wait for one another."""
        operation = Operation(
            "NCCL's " + "+".join(call.name for call in calls[:4]) + ("+..." if len(calls) > 4 else ""),
            lambda: self._make(calls),
            [call.read for call in calls if call.read],
            [call.write for call in calls if call.write],
        )
        first, *others = dict.fromkeys(call.stream for call in calls)
        for other in others:
            first.wait(other.record())
        first.queue(operation)
        for other in others:
            other.wait(first.record())

    def _make(self, calls: Sequence[Call]) -> Any:
        """Number the calls in the order in which this rank queues them; return the function that does them."""
        grouped = sum(not call.is_transfer for call in calls)
        with self._changed:
            self._outstanding += 1
            numbered = [(call, self._key(call)) for call in calls]
        return lambda: self._execute(numbered, grouped)

    def _key(self, call: Call) -> Any:
        if not call.is_transfer:
            return "collective", next(self._collectives)
        ends = (self.rank, call.root) if call.name == "send" else (call.root, self.rank)
        number = next(self._transfers.setdefault((*ends, call.name), itertools.count()))
        return call.name, (*ends, number)

    # On the stream ----------------------------------------------------------------------------------------------------

    def _execute(self, numbered: Sequence[tuple[Call, Any]], grouped: int) -> None:
        try:
            if any(call.hangs for call, _ in numbered):
                warn(f"rank {self.rank} hangs, as SIMULATED_NCCL_HANG says")
                self._wait([None])
                return
            for call, key in numbered:
                self._give(call, key, grouped)
            _spoil([call for call, _ in numbered])
            if not self._wait([key for _, key in numbered]):
                return
            for call, key in numbered:
                result = self._done.pop(key)
                if result is not None and call.write:
                    ctypes.memmove(call.write[0], result, len(result))
            if any(call.fails for call, _ in numbered):
                with self._changed:
                    self._fail(REMOTE_ERROR, "an asynchronous error, as SIMULATED_NCCL_ASYNC says")
        finally:
            with self._changed:
                self._outstanding -= 1
                self._changed.notify_all()

    def _give(self, call: Call, key: Any, grouped: int) -> None:
        part = ctypes.string_at(*call.read) if call.read else None
        try:
            if call.is_transfer:
                self._link.send("transfer", key[1], call.count * itemsize(call.datatype), part)
            else:
                what = (call.name, call.count, call.datatype, call.op, call.root, grouped)
                self._link.send("collective", key[1], what, part)
        except OSError:
            pass  # somebody is gone: the operation hangs

    def _wait(self, keys: Sequence[Any]) -> bool:
        """Wait for the results; return False if the communicator was aborted."""
        with self._changed:
            self._changed.wait_for(lambda: self.aborted or all(key in self._done for key in keys))
            return not self.aborted

    # The end ----------------------------------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Wait for what is queued, and leave."""
        with self._changed:
            self._changed.wait_for(lambda: not self._outstanding)
            self.aborted = True
        try:
            self._link.send("bye")
        except OSError:
            pass
        self._link.close()

    def abort(self) -> None:
        """Leave at once; operations that wait on a stream return, with whatever is in their memory."""
        with self._changed:
            self.aborted = True
            self._changed.notify_all()
        self._link.close()


def _spoil(calls: Sequence[Call]) -> None:
    """Overwrite memory that the calls write and do not read, so that reading it too early shows."""
    reads = [call.read for call in calls if call.read]
    for call in calls:
        if call.write and not blocks.overlap([call.write], reads):
            blocks.fill(call.write[0], blocks.FILLING, call.write[1])
