"""Places: float32 numbers that lie in several places of a GPU's memory, taken as one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distrun.tensor_fusion.device_packing import Piece
from distrun.tensor_fusion.device_quantisation import Source

ITEMSIZE = 4
"""The bytes of a float32."""


def cut(sources: Sequence[Source], part: slice, start: int = 0) -> list[Source]:
    """Return some of the elements of `sources`, whose first one has the number `start`; neighbours become one."""
    found: list[Source] = []
    for source in sources:
        first, stop = max(part.start, start), min(part.stop, start + source.count)
        if first < stop:
            address = source.address and source.address + (first - start) * ITEMSIZE
            last = found[-1] if found else None
            if last is not None and address == (last.address and last.address + last.count * ITEMSIZE):
                found[-1] = Source(last.address, last.count + stop - first)
            else:
                found.append(Source(address, stop - first))
        start += source.count
    return found


def single(sources: Sequence[Source]) -> bool:
    """Return whether elements lie in one place; zeros do not."""
    return len(sources) == 1 and sources[0].address != 0


def packing(sources: Sequence[Source], target: int) -> Iterator[Piece]:
    """Yield what copies elements to one place."""
    for source in sources:
        yield Piece(source.address, target, source.count)
        target += source.count * ITEMSIZE


def size_of(part: slice) -> int:
    """Return the number of elements of a part."""
    count: int = part.stop - part.start
    return count
