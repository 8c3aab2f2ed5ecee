"""Places: float32 numbers in several places of GPU memory, taken as one array."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from distrun.tensor_fusion.device_packing import Piece
from distrun.tensor_fusion.device_quantisation import Source

ITEMSIZE = 4
"""The bytes of a float32."""


class Places:
    """The places of consecutive elements. Adjacent places are merged. The address 0 stands for elements that are
    zero."""

    def __init__(self, sources: Iterable[Source], first: int = 0) -> None:
        """`first` is the number of the first element."""
        self._sources: list[Source] = []
        self._starts: list[int] = []
        start = first
        for address, count in sources:
            last = self._sources[-1] if self._sources else None
            if last is not None and address == _moved(last.address, last.count):
                self._sources[-1] = Source(last.address, last.count + count)
            elif count:
                self._sources.append(Source(address, count))
                self._starts.append(start)
            start += count
        self.count = start - first
        """The number of elements."""

    def part(self, part: slice) -> list[Source]:
        """Return the places of the elements of `part`."""
        found: list[Source] = []
        index = max(0, bisect_right(self._starts, part.start) - 1)
        for (address, count), start in zip(self._sources[index:], self._starts[index:], strict=True):
            if start >= part.stop:
                break
            first, stop = max(part.start, start), min(part.stop, start + count)
            if first < stop:
                found.append(Source(_moved(address, first - start), stop - first))
        return found


def _moved(address: int, count: int) -> int:
    """Return the address of the element `count` elements after `address`. The address 0, for zeros, stays 0."""
    return address and address + count * ITEMSIZE


def single(sources: Sequence[Source]) -> bool:
    """Return whether `sources` are one place in memory. Zeros are not."""
    return len(sources) == 1 and sources[0].address != 0


def packing(sources: Sequence[Source], target: int) -> Iterator[Piece]:
    """Yield the copies of the elements of `sources` to one place, `target`."""
    for source in sources:
        yield Piece(source.address, target, source.count)
        target += source.count * ITEMSIZE


def size_of(part: slice) -> int:
    """Return the number of elements of a part."""
    count: int = part.stop - part.start
    return count
