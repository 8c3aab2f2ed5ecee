"""Allocations: the owners of addresses, and whether queued operations still use them when they are freed."""

from __future__ import annotations

import bisect
import ctypes
import os
import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.machine import lock
from simulator.recorder import violate

if TYPE_CHECKING:
    from simulator.streams import Stream

ALIGNMENT = 512
FILLING = 0xFF  # not a number, in every floating-point type
_QUARANTINE = 64 << 20  # bytes of freed memory that are not used again, so that its use shows

Range = tuple[int, int]
"""An address and a number of bytes."""


class Block:
    """One allocation; `stream` is the one in whose order it may be used again, None for page-locked host memory."""

    def __init__(self, nbytes: int, stream: Stream | None, again: Block | None = None) -> None:
        """Take new memory, full of 0xFF, or a freed block's."""
        self.room = (-(-nbytes // ALIGNMENT) + 1) * ALIGNMENT  # with a gap to what is next
        self._raw = raw = np.full(self.room + ALIGNMENT, FILLING, np.uint8) if again is None else again._raw
        offset = -raw.ctypes.data % ALIGNMENT
        self.memory = raw[offset : offset + nbytes]
        self.address: int = self.memory.ctypes.data
        self.nbytes = nbytes
        self.stream = stream
        self.is_reusable = False
        self._behind = raw[offset + nbytes : offset + self.room]

    @property
    def is_overrun(self) -> bool:
        """Whether somebody has written behind the end."""
        return bool((self._behind != FILLING).any())

    def __str__(self) -> str:
        return f"{self.nbytes} bytes at {self.address:#x}" + ("" if self.stream else " (page-locked)")


_starts: list[int] = []
_live: dict[int, Block] = {}
_freed: deque[Block] = deque()
_random = random.Random(os.environ.get("SIMULATED_GPU_SEED", "0"))


def allocate(nbytes: int, stream: Stream | None, may_grow: bool) -> Block | None:
    """Return memory that is full of 0xFF when the stream comes to it: every other time some it has freed, if as large.

    Unless the pool `may_grow`, it is always freed memory, or None.
    """
    with lock:
        wanted = (nbytes, stream)
        again = next((each for each in _freed if each.is_reusable and (each.nbytes, each.stream) == wanted), None)
        if again is not None and may_grow and _random.random() < 0.5:
            again = None
        if again is not None:
            _freed.remove(again)
        elif not may_grow:
            return None
        block = Block(nbytes, stream, again)
        bisect.insort(_starts, block.address)
        _live[block.address] = block
    return block


def allocated() -> int:
    """Return the bytes of device memory in use."""
    with lock:
        return sum(block.nbytes for block in _live.values() if block.stream is not None)


def free(block: Block) -> None:
    """Take memory back, as cupy's pools do: the stream's next allocation may get it, and page-locked memory anybody's.

    Work that is queued on the stream itself, or for which the stream waits already, may still use it.
    """
    from simulator.streams import pending

    with lock:
        _starts.pop(bisect.bisect_left(_starts, block.address))
        del _live[block.address]
        owner = block.stream
        late = [(s, op) for s, op in pending() if block in op.blocks and not (owner and owner.is_behind(s, op))]
        for stream, operation in late:
            waits = "nobody waits" if owner is None else f"its stream {owner.handle:#x} does not wait"
            violate(
                f"use after free: {block} is freed while stream {stream.handle:#x} has still to do {operation.name} "
                f"with it, for which {waits}"
            )
        if block.is_overrun:
            violate(f"out of bounds: something has been written behind the end of an allocation of {block}")
        if not late:
            block.is_reusable = owner.recycle(block) if owner is not None else True
        _freed.append(block)
        while sum(each.nbytes for each in _freed) > _QUARANTINE:
            _freed.popleft()


def find(address: int) -> Block | None:
    """Return the allocation that holds an address."""
    with lock:
        place = bisect.bisect_right(_starts, address) - 1
        block = _live[_starts[place]] if place >= 0 else None
    return block if block and address < block.address + block.room else None


def check(name: str, ranges: Iterable[Range]) -> set[Block] | None:
    """Return the allocations that an operation uses; report what is freed, beyond an end or, if strict, nobody's.

    None if it must not be done, because this process would crash.
    """
    found: set[Block] = set()
    is_possible = True
    for address, nbytes in ranges:
        if not nbytes:
            continue
        block = find(address)
        if block is not None:
            found.add(block)
            if address + nbytes > block.address + block.nbytes:
                violate(f"out of bounds: {name} uses {nbytes} bytes at {address:#x}, of an allocation of {block}")
                is_possible = False
        elif was := _find_freed(address):
            violate(f"use after free: {name} is queued for {nbytes} bytes at {address:#x}, but {was} are freed")
        elif not address or os.environ.get("SIMULATED_GPU_STRICT") == "1":
            violate(f"unknown memory: {name} uses {nbytes} bytes at {address:#x}, which nobody has allocated")
            is_possible &= bool(address)
    return found if is_possible else None


def _find_freed(address: int) -> Block | None:
    with lock:
        return next((block for block in _freed if block.address <= address < block.address + block.nbytes), None)


def referred(arguments: Sequence[np.ndarray[Any, Any]]) -> set[Block]:
    """Return the allocations to which a kernel's arguments point, wherever in them."""
    found: set[Block] = set()
    for argument in arguments:
        data = argument.tobytes()
        for word in np.frombuffer(data[: len(data) // 8 * 8], np.uint64):
            if block := find(int(word)):
                found.add(block)
    return found


def overlap(some: Sequence[Range], others: Sequence[Range]) -> Range | None:
    """Return an overlap of two sets of ranges, or None."""
    for address, nbytes in some:
        for other, length in others:
            start, stop = max(address, other), min(address + nbytes, other + length)
            if start < stop:
                return start, stop - start
    return None


def move(target: int, source: int, nbytes: int) -> None:
    """Copy between addresses, now."""
    ctypes.memmove(target, source, nbytes)


def fill(target: int, value: int, nbytes: int) -> None:
    """Fill bytes, now."""
    ctypes.memset(target, value, nbytes)
