"""Device memory, and page-locked host memory. Both come from pools, as cupy's do unless told otherwise."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from simulator import blocks, capture, machine, streams
from simulator.machine import integer
from simulator.recorder import record

from cupy.cuda import runtime
from cupy.cuda.device import Device
from cupy.cuda.stream import get_current_stream


def _allocate(nbytes: int, stream: streams.Stream | None) -> blocks.Block:
    """Allocate from the pool, whose growth is unsafe during captures."""
    block = blocks.allocate(nbytes, stream, may_grow=not capture.unsafe(spoils=False))
    if block is None:
        raise runtime.CUDARuntimeError(capture.unsafe())
    return block


class OutOfMemoryError(MemoryError):
    """The device has not enough memory left."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes).")


class BaseMemory:
    """An address, and a size in bytes."""

    ptr: int
    size: int
    device_id: int

    def __int__(self) -> int:
        return self.ptr

    @property
    def device(self) -> Device:
        return Device(self.device_id)


class _PooledMemory(BaseMemory):
    """Memory that goes back to the pool of its stream with the object."""

    def __init__(self, nbytes: int) -> None:
        self.ptr = self.size = 0
        self.device_id = machine.touch()
        if not nbytes:
            return
        free, total = runtime.memGetInfo()
        if nbytes > free:
            raise OutOfMemoryError(nbytes, total - free)
        stream = streams.stream_of(get_current_stream().ptr)
        self.size = -(-nbytes // blocks.ALIGNMENT) * blocks.ALIGNMENT
        self._block = _allocate(nbytes, stream)
        self.ptr = self._block.address

    def __del__(self, is_finalizing: Any = sys.is_finalizing) -> None:
        if not is_finalizing() and self.ptr:
            blocks.free(self._block)


class UnownedMemory(BaseMemory):
    """Somebody else's memory, which `owner` keeps alive."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size = integer(ptr), machine.size(size)
        self.device_id = integer(device_id)
        if self.device_id < 0:
            if not self.ptr:
                raise RuntimeError("UnownedMemory requires explicit device ID for a null pointer.")
            self.device_id = machine.touch()
        self._owner = owner


class MemoryPointer:
    """A place in a piece of memory, which it keeps alive."""

    def __init__(self, mem: BaseMemory, offset: int) -> None:
        if not isinstance(mem, BaseMemory):
            raise TypeError(f"Argument 'mem' has incorrect type (expected BaseMemory, got {type(mem).__name__})")
        assert mem.ptr != 0 or offset == 0
        self.ptr = mem.ptr + integer(offset)
        self.device_id = mem.device_id
        self.mem = mem

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + integer(offset))

    @property
    def device(self) -> Device:
        return Device(self.device_id)


def alloc(size: int) -> MemoryPointer:
    """Return uninitialised device memory from the pool of the current stream."""
    nbytes = machine.size(size)
    record("alloc", get_current_stream().ptr, nbytes=nbytes)
    return MemoryPointer(_PooledMemory(nbytes), 0)


# Page-locked host memory ----------------------------------------------------------------------------------------------


class PinnedMemory:
    """Memory that goes back to the pool with the object, when all streams must have done what was queued."""

    def __init__(self, size: int, flags: int = 0) -> None:
        machine.touch()
        self.ptr = 0
        self.size = 0
        if size:
            rounded = -(-size // blocks.ALIGNMENT) * blocks.ALIGNMENT
            self.size = 1 << (rounded - 1).bit_length()
            self._block = _allocate(self.size, None)
            self.ptr = self._block.address

    def __del__(self, is_finalizing: Any = sys.is_finalizing) -> None:
        if not is_finalizing() and self.ptr:
            blocks.free(self._block)

    def __int__(self) -> int:
        return self.ptr


class PinnedMemoryPointer:
    """A place in page-locked host memory; a buffer of bytes, up to the end of the memory."""

    def __new__(cls, mem: PinnedMemory, offset: int) -> Any:
        nbytes = mem.size - offset
        if not nbytes:
            return super().__new__(cls)
        kind: Any = type(ctypes.Array)("PinnedMemoryPointer", (PinnedMemoryPointer, ctypes.c_byte * nbytes), {})
        return kind.from_address(mem.ptr + offset)

    def __init__(self, mem: PinnedMemory, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset

    def __int__(self) -> int:
        return self.ptr

    def size(self) -> int:
        return self.mem.size - (self.ptr - self.mem.ptr)


def alloc_pinned_memory(size: int) -> Any:
    """Return uninitialised page-locked host memory of at least `size` bytes."""
    nbytes = machine.size(size)
    record("alloc_pinned_memory", None, nbytes=nbytes)
    return PinnedMemoryPointer(PinnedMemory(nbytes), 0)
