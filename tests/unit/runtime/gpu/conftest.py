"""Stand-ins for a GPU in which everything is done at once. An address is that of host memory."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from distrun.runtime.backends.base import Backend
from distrun.runtime.gpu.buffers import DeviceBuffer
from distrun.runtime.operations.reduction import Reduction

DEADLINE = 60.0  # seconds

# Stand-ins ------------------------------------------------------------------------------------------------------------


class Driver:
    """The methods of the driver that operations use. A stream is any number."""

    def __init__(self) -> None:
        self.capturing: set[int] = set()
        self.log: list[tuple[Any, ...]] = []
        self.used_by: list[int] = []
        self.cupy: Any = None

    @property
    @contextmanager
    def use(self) -> Iterator[None]:
        self.used_by.append(threading.get_ident())
        yield

    def record(self, stream: int) -> tuple[str, int]:
        self.log.append(("record", stream))
        return "event", stream

    def synchronize(self, event: tuple[str, int]) -> None:
        self.log.append(("synchronize", event[1]))

    def is_capturing(self, stream: int) -> bool:
        return stream in self.capturing

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.log.append(("copy", nbytes, stream))
        ctypes.memmove(target, source, nbytes)

    def allocate(self, count: int, dtype: np.dtype[Any], stream: int) -> DeviceBuffer:
        array = np.full(count * dtype.itemsize, 0xA5, np.uint8)
        return DeviceBuffer(array.ctypes.data, count, dtype, array)

    def pinned(self, count: int, dtype: np.dtype[Any]) -> np.ndarray:
        return np.full(count * dtype.itemsize, 0x5A, np.uint8).view(dtype)


class ThreadRanks:
    """Ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._shown: list[Any] = [None] * size
        self._barrier = threading.Barrier(size)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Return every rank's value, when all have come."""
        self._shown[rank] = value
        self._barrier.wait(DEADLINE)
        values = list(self._shown)
        self._barrier.wait(DEADLINE)
        return values

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Return what `function` returns on every rank, or raise what it raised on the first that failed."""

        def one(rank: int) -> Any:
            try:
                return function(rank)
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(one, rank) for rank in range(self.size)]
        errors = [future.exception() for future in futures if future.exception() is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]


class HostBackend(Backend):
    """A rank's host backend among `ThreadRanks`."""

    name = "threads"

    def __init__(self, hosts: ThreadRanks, rank: int, wire: str = "") -> None:
        self.hosts, self.rank, self.size, self.wire = hosts, rank, hosts.size, wire

    def wire_of(self, request: Any) -> str:
        return self.wire if request.dtype in ("float32", "float64") else ""

    def quantisation_of(self, request: Any) -> str:
        return ""

    def allreduce(
        self, inputs: Sequence, outputs: Sequence, reduction: Reduction, what: str, feedback: Any = None
    ) -> None:
        everybody = self.hosts.exchange(self.rank, np.concatenate(inputs))
        result = np.empty_like(everybody[0])
        Reduction(reduction.element, reduction.op, self.size, reduction.prescale, reduction.postscale).combine(
            everybody, [result]
        )
        start = 0
        for output in outputs:
            output[:] = result[start : start + output.size]
            start += output.size

    def allgather(self, array: np.ndarray, what: str, room: None = None) -> tuple[np.ndarray, list[int]]:
        everybody = self.hosts.exchange(self.rank, array.copy())
        return np.concatenate(everybody), [part.size for part in everybody]

    def broadcast(self, array: np.ndarray, root: int, what: str) -> None:
        array[:] = self.hosts.exchange(self.rank, array.copy())[root]

    def alltoall(self, array: np.ndarray, splits: Sequence[int], what: str) -> tuple[np.ndarray, list[int]]:
        parts = np.split(array.copy(), np.cumsum(splits)[:-1])
        came = [theirs[self.rank] for theirs in self.hosts.exchange(self.rank, parts)]
        return np.concatenate(came), [part.size for part in came]

    def reducescatter(
        self, array: np.ndarray, counts: Sequence[int], reduction: Reduction, what: str, room: None = None
    ) -> np.ndarray:
        whole = np.empty_like(array)
        self.allreduce([array], [whole], reduction, what)
        start = sum(counts[: self.rank])
        return whole[start : start + counts[self.rank]].copy()

    def barrier(self, what: str) -> None:
        self.hosts.exchange(self.rank, None)


def view(pointer: int, count: int, dtype: Any) -> np.ndarray:
    """Return the elements at an address."""
    dtype = np.dtype(dtype)
    return np.frombuffer((ctypes.c_uint8 * (count * dtype.itemsize)).from_address(pointer), dtype)


def buffer_of(array: np.ndarray) -> DeviceBuffer:
    """Return an array as a buffer on the GPU."""
    assert array.flags.c_contiguous
    return DeviceBuffer(array.ctypes.data, array.size, array.dtype, array)


def allocate(handle: Any, count: int, dtype: np.dtype[Any]) -> DeviceBuffer:
    """Return memory for a result."""
    return buffer_of(np.empty(count, dtype))


def handle_of(request: Any, inputs: Sequence = (), outputs: Sequence = (), splits: Sequence[int] = ()) -> Any:
    """Return as much of a handle as backends need; inputs and outputs are arrays."""
    return SimpleNamespace(
        **{"request": request, "splits": splits, "received": (), "engine": None, "key": (0, request.name or 0)},
        **{"taking_part": 0, "feedback": None, "title": f"{request.kind} '{request.name}'"},
        **{"inputs": [buffer_of(array) for array in inputs], "outputs": [buffer_of(array) for array in outputs]},
    )


@pytest.fixture
def stand_ins() -> SimpleNamespace:
    """The stand-ins above."""
    return SimpleNamespace(
        **{
            "Driver": Driver,
            "ThreadRanks": ThreadRanks,
            "HostBackend": HostBackend,
            "view": view,
            "buffer_of": buffer_of,
        },
        **{"allocate": allocate, "handle_of": handle_of},
    )
