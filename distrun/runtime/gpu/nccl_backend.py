"""Collectives on GPU buffers through NCCL, queued on a stream.

Which calls a rank makes, and with which counts, follows from what all ranks know alike: the shapes of the request and the
sizes that the host backend has exchanged. Whether an array is copied first is each rank's own business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from distrun.runtime.backends.base import Backend
from distrun.runtime.gpu.buffers import DeviceBuffer
from distrun.runtime.gpu.driver import Driver
from distrun.runtime.gpu.fusion_memory import FusionMemory, Layout, Run, Spot, runs
from distrun.runtime.gpu.handles import DeviceHandle
from distrun.runtime.gpu.nccl import ITEMSIZES, AnyCommunicator, NcclError
from distrun.runtime.gpu.packing import Packer, Piece
from distrun.runtime.operations.reduction import Average, Max, Min, Product, ReduceOp, Sum
from distrun.runtime.operations.request import Request, counts_of

Room = Callable[[DeviceHandle, int, np.dtype[Any]], DeviceBuffer]
"""Memory for a result of so many elements, which the communication stream may write at once."""

LARGE = 1 << 20
"""Bytes from which a tensor is reduced where it lies; smaller ones are packed together."""

_BYTES = "uint8"  # what only moves

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
_PAIRS = {"complex64": "float32", "complex128": "float64"}

_OPS: dict[ReduceOp, str] = {Average: "avg", Sum: "sum", Min: "min", Max: "max", Product: "prod"}
_BOOLEAN_OPS: dict[ReduceOp, str] = {Average: "max", Sum: "max", Max: "max", Min: "min", Product: "min"}


class Arithmetic(NamedTuple):
    """A reduction in NCCL's terms."""

    dtype: str
    """NCCL's elements in memory."""
    wire: str
    """NCCL's elements as they are reduced."""
    units: int
    """How many of them make one element of the request: 2 for complex numbers."""
    op: str
    prescale: float
    postscale: float

    @property
    def is_cast(self) -> bool:
        """Whether elements are converted to be reduced."""
        return self.dtype != self.wire


def arithmetic(request: Request, wire: str = "") -> Arithmetic | None:
    """How NCCL carries out a reduction; None if it would give something else than the host does.

    `wire`: the half-precision type in which elements travel; empty: their own.
    """
    dtype, op = request.dtype, request.op
    if dtype in _FLOATS:
        return Arithmetic(dtype, wire or dtype, 1, _OPS[op], request.prescale, request.postscale)
    if dtype in _PAIRS and op in (Sum, Average):
        return Arithmetic(_PAIRS[dtype], _PAIRS[dtype], 2, _OPS[op], request.prescale, request.postscale)
    if dtype == "bool":  # to which factors do nothing
        return Arithmetic(_BYTES, _BYTES, 1, _BOOLEAN_OPS[op], 1.0, 1.0)
    if dtype in _INTEGERS and op is not Average and request.prescale == request.postscale == 1.0:
        return Arithmetic(dtype, dtype, 1, _OPS[op], 1.0, 1.0)
    return None


def takes(request: Request) -> bool:
    """Whether NCCL can carry out the request with the meaning that the host gives it. Everything else is to be staged."""
    if request.kind in ("allreduce", "reducescatter"):
        return arithmetic(request) is not None
    return request.kind in ("broadcast", "allgather", "alltoall")


class NcclBackend:
    """One rank's part in the collectives of a group. One thread at a time performs, with the driver's GPU current."""

    def __init__(
        self, driver: Driver, communicator: AnyCommunicator, packer: Packer, stream: int, host: Backend, hosts: int
    ) -> None:
        """
        Args:
            host: exchanges the sizes in which ranks may differ.
            hosts: how many hosts the ranks are on.
        """
        self._communicator = communicator
        self._packer = packer
        self._host = host
        self._hosts = hosts
        self._fusion = FusionMemory(driver)
        self.stream = stream
        """On which to queue; may be changed between operations."""

    @property
    def fusion_bytes(self) -> int:
        """Bytes of GPU memory held for packing."""
        return self._fusion.nbytes

    def execute(self, handles: Sequence[DeviceHandle], room: Room, what: str) -> None:
        """Queue `handles`, all of one kind and, if there are several, of one fusion key; fills in their outputs.

        `what` names them in errors.

        Raises:
            NcclError: NCCL failed.
        """
        kind = handles[0].request.kind
        try:
            if kind == "allreduce":
                self._allreduce(handles)
            elif kind == "broadcast":
                self._broadcast(handles)
            elif kind == "allgather":
                self._allgather(handles, room, what)
            else:
                for handle in handles:
                    if kind == "alltoall":
                        self._alltoall(handle, room, what)
                    else:
                        self._reducescatter(handle, room)
        except NcclError as error:
            raise NcclError(f"{what}: {error}") from None

    def _group(self, calls: int) -> AbstractContextManager[None]:
        """Around so many calls of NCCL."""
        return self._communicator.group() if calls > 1 else nullcontext()

    # Reductions -----------------------------------------------------------------------------------------------------

    def _arithmetic(self, request: Request) -> Arithmetic:
        how = arithmetic(request, self._host.wire_of(request) if self._hosts > 1 else "")
        assert how is not None, "not for NCCL: takes() says so"
        return how

    def _allreduce(self, handles: Sequence[DeviceHandle]) -> None:
        how = self._arithmetic(handles[0].request)
        units, unit, memory_unit = how.units, ITEMSIZES[how.wire], ITEMSIZES[how.dtype]
        sizes = [count for handle in handles for shape in handle.request.shapes if (count := math.prod(shape))]
        if not sizes:
            return
        sources = list(runs([buffer for handle in handles for buffer in handle.inputs], sizes))
        targets = list(runs([buffer for handle in handles for buffer in handle.outputs], sizes))
        plan = Plan(how)
        packed = [place for place, size in enumerate(sizes) if size * units * memory_unit < LARGE]
        if len(packed) > 1 and self._communicator.size > 1:  # alone there is nothing to be saved
            for place in packed:
                plan.pack(sources[place], targets[place], plan.layout.add(sizes[place] * units * unit))
            plan.calls.append((Spot(0, True), Spot(0, True), plan.layout.nbytes // unit))
        else:
            packed = []
        for place in sorted(set(range(len(sizes))).difference(packed)):
            plan.add(sources[place], targets[place], sizes[place])
        base = self._fusion.pointer(plan.layout.nbytes, self.stream)
        self._copy(plan.packs(base), how.dtype, how.wire, how.prescale)
        with self._group(len(plan.calls)):
            for source, target, count in plan.calls:
                self._communicator.all_reduce(
                    source.pointer(base), target.pointer(base), count, how.wire, how.op, self.stream
                )
        self._copy(plan.unpacks(base), how.wire, how.dtype, how.postscale)

    def _copy(self, pieces: Sequence[Piece], source: str, target: str, factor: float) -> None:
        if factor == 1.0 and source == target:
            pieces = [piece for piece in pieces if piece.source != piece.target]
        if pieces:
            self._packer.copy(pieces, source, target, factor, self.stream)

    def _reducescatter(self, handle: DeviceHandle, room: Room) -> None:
        request = handle.request
        how = self._arithmetic(request)
        units, unit = how.units, ITEMSIZES[how.wire]
        rank, layout = self._host.rank, Layout()
        outputs: list[DeviceBuffer] = []
        parts: list[tuple[Spot, Spot, list[int]]] = []
        packs: list[tuple[int, Spot, int]] = []
        unpacks: list[tuple[Spot, int, int]] = []
        for buffer, shape in zip(handle.inputs, request.shapes, strict=True):
            counts = [count * units for count in counts_of(shape, self._host.size)]
            output = room(handle, counts[rank] // units, buffer.dtype)
            outputs.append(output)
            if not sum(counts):
                continue
            source, target = Spot(buffer.pointer), Spot(output.pointer)
            if how.is_cast or how.prescale != 1.0:  # never in place: the input is the caller's
                source = layout.add(sum(counts) * unit)
                packs.append((buffer.pointer, source, sum(counts)))
            if how.is_cast:
                target = layout.add(counts[rank] * unit)
            unpacks.append((target, output.pointer, counts[rank]))
            parts.append((source, target, counts))
        base = self._fusion.pointer(layout.nbytes, self.stream)
        self._copy(
            [Piece(source, spot.pointer(base), count) for source, spot, count in packs],
            *(how.dtype, how.wire, how.prescale),
        )
        calls = [
            call
            for source, target, counts in parts
            for call in self._scatter_calls(source.pointer(base), target.pointer(base), counts, how)
        ]
        with self._group(len(calls)):
            for call in calls:
                call()
        self._copy(
            [Piece(spot.pointer(base), target, count) for spot, target, count in unpacks if count],
            *(how.wire, how.dtype, how.postscale),
        )
        handle.outputs = outputs

    def _scatter_calls(
        self, source: int, target: int, counts: Sequence[int], how: Arithmetic
    ) -> Iterator[Callable[[], None]]:
        """The calls that leave each rank with its reduced part of one array."""
        communicator, stream = self._communicator, self.stream
        if len(set(counts)) == 1:
            count = counts[0]
            yield lambda: communicator.reduce_scatter(source, target, count, how.wire, how.op, stream)
            return

        def reduce(start: int, count: int, root: int) -> Callable[[], None]:
            # Only the root's target is written to, and an address of nothing must not be looked at.
            part = source + start * ITEMSIZES[how.wire]
            mine = target if root == communicator.rank else part
            return lambda: communicator.reduce(part, mine, count, how.wire, how.op, root, stream)

        start = 0
        for root, count in enumerate(counts):
            if count:
                yield reduce(start, count, root)
            start += count

    # Copies ---------------------------------------------------------------------------------------------------------

    def _broadcast(self, handles: Sequence[DeviceHandle]) -> None:
        root = handles[0].request.root
        buffers = [buffer for handle in handles for buffer in handle.outputs if buffer.size]
        with self._group(len(buffers)):
            for buffer in buffers:
                self._communicator.broadcast(buffer.pointer, buffer.pointer, buffer.nbytes, _BYTES, root, self.stream)

    def _allgather(self, handles: Sequence[DeviceHandle], room: Room, what: str) -> None:
        sizes = np.array([buffer.size for handle in handles for buffer in handle.inputs], np.int64)
        table, _ = self._host.allgather(sizes, what)
        columns = iter(table.reshape(self._host.size, sizes.size).T.tolist())
        calls: list[Callable[[], None]] = []
        for handle in handles:
            outputs: list[DeviceBuffer] = []
            received: list[list[int]] = []
            for buffer in handle.inputs:
                counts: list[int] = next(columns)
                output = room(handle, sum(counts), buffer.dtype)
                calls += self._gather_calls(buffer, output, counts)
                outputs.append(output)
                received.append(counts)
            handle.outputs, handle.received = outputs, received
        with self._group(len(calls)):
            for call in calls:
                call()

    def _gather_calls(
        self, buffer: DeviceBuffer, output: DeviceBuffer, counts: Sequence[int]
    ) -> Iterator[Callable[[], None]]:
        """The calls that put everybody's part of one array into everybody's output."""
        communicator, stream = self._communicator, self.stream
        if not sum(counts):
            return
        if len(set(counts)) == 1:
            yield lambda: communicator.all_gather(buffer.pointer, output.pointer, buffer.nbytes, _BYTES, stream)
            return

        def broadcast(part: DeviceBuffer, root: int) -> Callable[[], None]:
            source = buffer.pointer if root == communicator.rank else part.pointer
            return lambda: communicator.broadcast(source, part.pointer, part.nbytes, _BYTES, root, stream)

        start = 0
        for root, count in enumerate(counts):
            if count:
                yield broadcast(output.part(start, start + count), root)
            start += count

    def _alltoall(self, handle: DeviceHandle, room: Room, what: str) -> None:
        communicator, stream, splits = self._communicator, self.stream, handle.splits
        (buffer,) = handle.inputs
        came, _ = self._host.alltoall(np.array(splits, np.int64), [1] * self._host.size, what)
        counts = came.tolist()
        output = room(handle, sum(counts), buffer.dtype)
        with communicator.group():  # in which everybody sends and receives at once
            sent = received = 0
            for peer, (split, count) in enumerate(zip(splits, counts, strict=True)):
                if split:
                    part = buffer.part(sent, sent + split)
                    communicator.send(part.pointer, part.nbytes, _BYTES, peer, stream)
                if count:
                    part = output.part(received, received + count)
                    communicator.recv(part.pointer, part.nbytes, _BYTES, peer, stream)
                sent += split
                received += count
        handle.outputs, handle.received = [output], [counts]


class Plan:
    """What an allreduce does, but for where the fusion memory will lie: pack, reduce, unpack."""

    def __init__(self, how: Arithmetic) -> None:
        self.layout = Layout()
        self.calls: list[tuple[Spot, Spot, int]] = []
        """Source, target, and how many of NCCL's elements."""
        self._how = how
        self._packs: list[tuple[list[Run], Spot]] = []
        self._unpacks: list[tuple[Spot, list[Run]]] = []

    def pack(self, sources: list[Run], targets: list[Run], spot: Spot) -> None:
        """A tensor that is reduced, with others, in the fusion memory."""
        self._packs.append((sources, spot))
        self._unpacks.append((spot, targets))

    def add(self, sources: list[Run], targets: list[Run], size: int) -> None:
        """A tensor that is reduced by itself; where it lies, if it lies in one piece and as it is reduced."""
        how = self._how
        count = size * how.units
        if how.is_cast or len(targets) > 1:
            place = self.layout.add(count * ITEMSIZES[how.wire])
        else:
            place = Spot(targets[0].pointer)
        if how.is_cast or len(sources) > 1 or how.prescale != 1.0:
            self._packs.append((sources, place))
            self.calls.append((place, place, count))
        else:
            self.calls.append((Spot(sources[0].pointer), place, count))
        self._unpacks.append((place, targets))

    def packs(self, base: int) -> list[Piece]:
        """What is copied first; the fusion memory begins at `base`."""
        return [
            Piece(pointer, packed, count)
            for sources, spot in self._packs
            for pointer, packed, count in self._pieces(sources, spot.pointer(base), ITEMSIZES[self._how.wire])
        ]

    def unpacks(self, base: int) -> list[Piece]:
        """What is copied, or scaled where it is, afterwards."""
        return [
            Piece(packed, pointer, count)
            for spot, targets in self._unpacks
            for pointer, packed, count in self._pieces(targets, spot.pointer(base), ITEMSIZES[self._how.wire])
        ]

    def _pieces(self, scattered: list[Run], packed: int, itemsize: int) -> Iterator[tuple[int, int, int]]:
        for pointer, count in scattered:
            yield pointer, packed, count * self._how.units
            packed += count * self._how.units * itemsize
