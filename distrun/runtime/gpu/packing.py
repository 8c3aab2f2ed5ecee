"""Packing: copies many pieces of GPU memory with one launch, and plans the copies of a reduction.

The packer converts and scales elements while it copies them. A plan lists what a reduction packs in the fusion memory,
reduces there, and unpacks. Its calls of NCCL, and their counts, are the same on all ranks. Whether a tensor is copied
for its call depends on its place in memory, so each rank decides it for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from distrun.errors import CollectiveError
from distrun.runtime.gpu.buffers import DeviceBuffer
from distrun.runtime.gpu.driver import Driver
from distrun.runtime.gpu.nccl.library import ITEMSIZES
from distrun.runtime.gpu.nccl.reduction import NcclReduction
from distrun.tensor_fusion.device_packing import (
    KERNEL,
    LINE_BYTES,
    THREADS,
    Piece,
    Variant,
    choose_variant,
    launches,
    move_targets,
    read_code,
)

_SLOT = 16  # bytes: slots begin at multiples of this, as 16-byte loads and stores require


class StreamArgument(NamedTuple):
    """A stream, as an argument of cupy's kernels."""

    ptr: int


class Copies(NamedTuple):
    """Copies that are planned, to be queued as often as wanted."""

    kernel: Any
    launches: list[tuple[NDArray[Any], int]]
    what: str


class Packer:
    """Launches the kernel of packing.cu, whose variants are compiled on first use. Any thread may call it."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._kernels: dict[tuple[str, str], Any] = {}

    def copy(self, pieces: Sequence[Piece], source: str, target: str, factor: float, stream: int) -> None:
        """Queue target[i] = factor * source[i] for all `pieces`, converted from type `source` to type `target`.

        It takes one launch for every 128 pieces, and allocates nothing. The caller is inside `driver.use`.

        Args:
            pieces: counts are in elements. Addresses must be multiples of the element's size unless elements are only
                copied. A source of 0 stands for zeros. A piece's source may be its target if the types are equal.
            source: the name of the element type in the sources.
            target: the name of the element type in the targets.

        Raises:
            UsageError: the kernel cannot convert or scale these types.
            CollectiveError: the kernel could not be compiled or launched.
        """
        copies = self.plan(pieces, source, target, factor)
        if copies is not None:
            self.queue(copies, stream)

    def plan(self, pieces: Sequence[Piece], source: str, target: str, factor: float) -> Copies | None:
        """Return the copies that `copy` queues, or None if nothing is to be copied.

        Raises:
            UsageError: the kernel cannot convert or scale these types.
        """
        variant = choose_variant(source, target, factor)
        planned = launches(pieces, variant, factor)
        return (
            Copies(self._kernel(variant), planned, f"{len(pieces)} arrays of {source} as {target}") if planned else None
        )

    def queue(self, copies: Copies, stream: int) -> None:
        """Queue copies. The caller is inside `driver.use`.

        Raises:
            CollectiveError: the kernel could not be compiled or launched.
        """
        kernel, planned, what = copies
        try:
            for table, blocks in planned:
                kernel((blocks,), (THREADS,), (table,), stream=StreamArgument(stream))
        except Exception as error:
            raise CollectiveError(f"the GPU could not copy {what}: {type(error).__name__}: {error}") from error

    def _kernel(self, variant: Variant) -> Any:
        kernel = self._kernels.get((variant.source, variant.target))
        if kernel is None:
            made = self.driver.cupy.RawKernel(read_code(), KERNEL, variant.options)
            kernel = self._kernels.setdefault((variant.source, variant.target), made)
        return kernel


# The plan of a reduction ---------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """Consecutive elements in memory: the address of the first, and their number."""

    pointer: int
    size: int


class Tensor(NamedTuple):
    """A tensor to reduce: the places of its elements and of the results, and the number of elements."""

    sources: list[Span]
    targets: list[Span]
    size: int


def spans(buffers: Iterable[DeviceBuffer], sizes: Iterable[int]) -> Iterator[list[Span]]:
    """Yield the spans of each tensor's elements, in order.

    Args:
        buffers: hold the tensors one after the other, taken as one long array. They may be divided anywhere.
        sizes: the number of elements of each tensor, all > 0.
    """
    rest = iter(buffers)
    pointer = left = itemsize = 0
    for size in sizes:
        found: list[Span] = []
        while size:
            while not left:
                buffer = next(rest)
                pointer, left, itemsize = buffer.pointer, buffer.size, buffer.dtype.itemsize
            count = min(size, left)
            if found and found[-1].pointer + found[-1].size * itemsize == pointer:
                found[-1] = Span(found[-1].pointer, found[-1].size + count)
            else:
                found.append(Span(pointer, count))
            pointer += count * itemsize
            left -= count
            size -= count
        yield found


class Location(NamedTuple):
    """A location in GPU memory: an address, an offset in the fusion memory, or an address among the results, which may
    have moved since."""

    at: int
    is_offset: bool = False
    may_move: bool = False

    def pointer(self, base: int, moved: int = 0) -> int:
        """Return the address, given the address `base` of the fusion memory, and how far the results have moved."""
        if self.is_offset:
            return base + self.at
        return self.at + moved if self.may_move else self.at


class FusionSlots:
    """Allocates slots in the fusion memory, one after the other."""

    def __init__(self) -> None:
        self.nbytes = 0

    def add(self, nbytes: int) -> Location:
        """Return a new slot of `nbytes` bytes."""
        location = Location(self.nbytes, True)
        self.nbytes += -(-nbytes // _SLOT) * _SLOT
        return location


class PackingPlan:
    """The steps of an allreduce, pack, reduce and unpack, made before the address of the fusion memory is known.

    If it is kept for later, all results may lie elsewhere by then, but as one, each in the same place among the others.
    """

    def __init__(self, reduction: NcclReduction, is_alone: bool, output: int = 0) -> None:
        """
        Args:
            is_alone: whether one rank reduces alone.
            output: the address where the results begin.
        """
        self.slots = FusionSlots()
        self.packs: Copies | None = None
        """The copies before the calls."""
        self.calls: list[tuple[int, int, int]] = []
        """The calls of NCCL: source, target, and the count in NCCL's elements."""
        self.unpacks: Copies | None = None
        """The copies, or scalings in place, after the calls."""
        self._planned = output  # `_packs`, `_calls` and `_unpacks` are for results there,
        self._base, self._output = -1, output  # and `packs`, `calls` and `unpacks` for these addresses
        self._only_targets_move = True  # with the results, those of `unpacks`
        self._is_alone = is_alone
        self.reduction = reduction
        self._calls: list[tuple[Location, Location, int]] = []
        self._packs: list[tuple[list[Span], Location]] = []
        self._unpacks: list[tuple[Location, list[Span]]] = []

    def add_fused(self, sources: list[Span], targets: list[Span], size: int) -> None:
        """Add a tensor that is packed. `add_fused_call` reduces it together with the others."""
        slot = self.slots.add(size * self.reduction.units * ITEMSIZES[self.reduction.wire])
        self._packs.append((sources, slot))
        self._unpacks.append((slot, targets))

    def add_fused_call(self) -> None:
        """Add the call that reduces everything packed so far. The padding between slots is reduced as well, but not
        used."""
        self._calls.append((Location(0, True), Location(0, True), self.slots.nbytes // ITEMSIZES[self.reduction.wire]))

    def add_alone(self, sources: list[Span], targets: list[Span], size: int) -> None:
        """Add a tensor with its own call. It is reduced in place if it is one span and needs no conversion."""
        reduction = self.reduction
        count = size * reduction.units
        if reduction.is_cast or len(targets) > 1:
            target = self.slots.add(count * ITEMSIZES[reduction.wire])
        else:
            target = Location(targets[0].pointer, may_move=True)
        is_packed = reduction.is_cast or len(sources) > 1 or reduction.prescale != 1.0
        if target.may_move and (is_packed or reduction.postscale != 1.0):
            self._only_targets_move = False
        if is_packed:
            self._packs.append((sources, target))
            self._calls.append((target, target, count))
        else:
            self._calls.append((Location(sources[0].pointer), target, count))
        self._unpacks.append((target, targets))

    def add_copied(self, sources: list[Span], targets: list[Span], size: int) -> None:
        """Add a tensor of a rank alone, whose result is the tensor itself, in one span."""
        self._unpacks.append((Location(sources[0].pointer), targets))

    def bind(self, base: int, output: int, packer: Packer) -> None:
        """Set `packs`, `calls` and `unpacks` for the addresses of the fusion memory and of the results."""
        by = output - self._output
        if base == self._base and not by:
            return
        reduction, moved = self.reduction, output - self._planned
        calls = [
            (source.pointer(base, moved), target.pointer(base, moved), count) for source, target, count in self._calls
        ]
        # One rank's result is its input, so in place there is nothing to do.
        self.calls = [call for call in calls if not (self._is_alone and call[0] == call[1])]
        if base == self._base and self._only_targets_move and not by % LINE_BYTES:
            if self.unpacks is not None:
                move_targets(self.unpacks.launches, by)
        else:
            packed, unpacked = self._packed(base, moved), self._unpacked(base, moved)
            self.packs = packer.plan(packed, reduction.dtype, reduction.wire, reduction.prescale)
            self.unpacks = packer.plan(unpacked, reduction.wire, reduction.dtype, reduction.postscale)
        self._base, self._output = base, output

    def _packed(self, base: int, moved: int) -> list[Piece]:
        return [
            Piece(pointer, packed, count)
            for sources, location in self._packs
            for pointer, packed, count in self._pieces(sources, location.pointer(base, moved), self.reduction.wire)
        ]

    def _unpacked(self, base: int, moved: int) -> list[Piece]:
        return [
            Piece(packed, pointer + moved, count)
            for location, targets in self._unpacks
            for pointer, packed, count in self._pieces(targets, location.pointer(base, moved), self.reduction.wire)
        ]

    def _pieces(self, scattered: list[Span], packed: int, packed_type: str) -> Iterator[tuple[int, int, int]]:
        for pointer, size in scattered:
            count = size * self.reduction.units
            yield pointer, packed, count
            packed += count * ITEMSIZES[packed_type]
