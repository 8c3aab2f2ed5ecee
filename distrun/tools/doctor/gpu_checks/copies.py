"""A program that copies between every two GPUs of this host, and prints one JSON object.

    {"places": [PCI ADDRESS, ..], "access": [[BOOLEAN, ..], ..], "rates": [[BYTES PER SECOND or null, ..], ..],
     "wrong": [[FROM, TO], ..]}

Row i of a matrix is about copies from GPU i. "wrong" are the pairs whose bytes arrived changed. If the GPUs cannot be
used at all, the object is {"skipped": REASON}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from distrun.errors import UsageError
from distrun.runtime.gpu.driver import Driver

_BYTES = 64 << 20
_REPEATED = 4


class _End:
    """A GPU, its stream, and memory to copy from and to."""

    def __init__(self, index: int, nbytes: int) -> None:
        self.index = index
        self.driver = Driver(index)
        self.stream = self.driver.new_stream()
        self.expected = np.random.default_rng(index).integers(0, 256, nbytes, np.uint8)
        self._host = self.driver.pinned(nbytes, np.dtype(np.uint8))
        self.source, self.target = (self.driver.allocate(nbytes, np.dtype(np.uint8), self.stream.ptr) for _ in "12")
        self._host[:] = self.expected
        with self.driver.use:
            self.driver.copy(self.source.pointer, self._host.ctypes.data, nbytes, self.stream.ptr)
            self.stream.synchronize()

    def received(self) -> Any:
        """Return the bytes that have arrived."""
        with self.driver.use:
            self.driver.copy(self._host.ctypes.data, self.target.pointer, len(self._host), self.stream.ptr)
            self.stream.synchronize()
        return self._host

    def open(self, other: _End) -> bool:
        """Let this GPU access the memory of another one, if it can."""
        with self.driver.use:
            runtime = self.driver.cupy.cuda.runtime
            able = bool(runtime.deviceCanAccessPeer(self.index, other.index))
            if able:
                runtime.deviceEnablePeerAccess(other.index)
        return able

    def send(self, other: _End) -> float:
        """Copy to another GPU several times, and return the bytes per second."""
        with self.driver.use:
            cuda, nbytes = self.driver.cupy.cuda, len(self._host)
            before, after = cuda.Event(), cuda.Event()
            for number in range(1 + _REPEATED):
                if number == 1:  # the first copy prepares the way
                    before.record(self.stream)
                cuda.runtime.memcpyPeerAsync(
                    *(other.target.pointer, other.index, self.source.pointer, self.index), nbytes, self.stream.ptr
                )
            after.record(self.stream)
            after.synchronize()
            return float(_REPEATED * nbytes / (cuda.get_elapsed_time(before, after) / 1e3))


def measure(nbytes: int = _BYTES) -> dict[str, Any]:
    """Return the object that the module's docstring describes."""
    try:
        first = Driver(0)
        ends = [_End(index, nbytes) for index in range(first.cupy.cuda.runtime.getDeviceCount())]
    except UsageError as error:
        return {"skipped": str(error)}
    access = [[one is other or one.open(other) for other in ends] for one in ends]
    rates: list[list[float | None]] = [[None] * len(ends) for _ in ends]
    wrong = []
    for one in ends:
        for other in ends:
            if one is not other:
                rates[one.index][other.index] = one.send(other)
                if not np.array_equal(other.received(), one.expected):
                    wrong.append([one.index, other.index])
    return {"places": [end.driver.bus_id for end in ends], "access": access, "rates": rates, "wrong": wrong}


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
