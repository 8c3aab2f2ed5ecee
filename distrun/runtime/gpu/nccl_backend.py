"""Collectives on GPU buffers through NCCL, queued on a stream.

A rank's calls of NCCL, and their counts, depend only on what all ranks know: the shapes of the request and the sizes
that the host backend has exchanged. Whether an array is copied first, each rank decides for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from distrun.contract.settings import QUANTISED
from distrun.runtime.backends.base import Backend
from distrun.runtime.backends.dispatch import together
from distrun.runtime.gpu.buffers import DeviceBuffer, RepeatedBuffers
from distrun.runtime.gpu.fusion_memory import FusionMemory
from distrun.runtime.gpu.handles import Allocate, DeviceHandle, room_for
from distrun.runtime.gpu.nccl.library import ITEMSIZES, AnyCommunicator, NcclError
from distrun.runtime.gpu.nccl.reduction import BYTES, NcclReduction, nccl_reduction
from distrun.runtime.gpu.packing import FusionSlots, Location, Packer, PackingPlan, Tensor, spans
from distrun.runtime.operations.handle import describe
from distrun.runtime.operations.request import Request, counts_of
from distrun.runtime.operations.wire import SMALL
from distrun.runtime.transport.host_layout import HostLayout
from distrun.tensor_fusion.device_packing import Piece

if TYPE_CHECKING:
    from distrun.runtime.gpu.quantised.exchange import QuantisedExchange

PACKED_BELOW = 1 << 20
"""Tensors of fewer bytes are packed together. Larger ones are reduced in place."""
QUANTISABLE = "float32"
"""The type of elements that may be quantised between hosts."""
Queue = Callable[[int], object]
"""A call of NCCL: queues itself on a stream."""


class NcclBackend:
    """Executes the collectives of a group on one rank. One thread at a time calls it, with the driver's GPU current."""

    def __init__(
        self,
        fusion: FusionMemory,
        communicator: AnyCommunicator,
        packer: Packer,
        stream: int,
        host_backend: Backend,
        ranks: Sequence[int],
    ) -> None:
        """
        Args:
            fusion: the memory to pack tensors in. Several groups may share it, since operations are queued one by one.
            host_backend: exchanges sizes that may differ between ranks.
            ranks: the ranks of the group, by their numbers in the job.
        """
        self._communicator = communicator
        self._packer = packer
        self._host_backend = host_backend
        self._ranks = ranks
        self._fusion = fusion
        self._exchange: QuantisedExchange | None = None
        self.stream = stream
        """The stream that operations are queued on. It may be changed between operations."""

    def execute(self, handles: Sequence[DeviceHandle], allocate: Allocate) -> None:
        """Queue `handles`, all of one kind and, if there are several, of one fusion key, and set their outputs.

        Raises:
            NcclError: NCCL failed.
        """
        kind = handles[0].request.kind
        try:
            if kind == "allreduce":
                self._allreduce(handles)
            elif None not in (plans := [self._planned(handle, handle.outputs) for handle in handles]):
                self._queue(list(chain.from_iterable(plans)))
            elif kind == "broadcast":
                self._broadcast(handles)
            elif kind == "allgather":
                self._allgather(handles, allocate)
            else:
                for handle in handles:
                    if kind == "alltoall":
                        self._alltoall(handle, allocate)
                    else:
                        self._reducescatter(handle, allocate)
        except NcclError as error:
            raise NcclError(f"{describe(handles)}: {error}") from None

    def _queue(self, calls: Sequence[Queue]) -> None:
        """Queue calls of NCCL: several form one group, which costs one launch."""
        stream = self.stream
        if len(calls) == 1:
            calls[0](stream)
        elif calls:
            with self._communicator.group():
                for call in calls:
                    call(stream)

    def _planned(self, handle: DeviceHandle, buffers: Sequence[DeviceBuffer]) -> Any:
        """Return the plan of an operation on `buffers` that repeats, if this backend has made one for its request."""
        if type(buffers) is RepeatedBuffers and buffers.plan is not None:
            backend, request, plan = buffers.plan
            if backend is self and request is handle.request:
                return plan
        return None

    def _keep(self, handle: DeviceHandle, plan: Any) -> None:
        if isinstance(handle.outputs, RepeatedBuffers):
            handle.outputs.plan = self, handle.request, plan

    # Reductions -----------------------------------------------------------------------------------------------------

    def _reduction(self, request: Request) -> NcclReduction:
        reduction = nccl_reduction(request, self._host_backend.wire_of(request))
        assert reduction is not None, "is_supported() has said so"
        return reduction

    def _allreduce(self, handles: Sequence[DeviceHandle]) -> None:
        request, buffers = handles[0].request, handles[0].inputs
        plan = self._planned(handles[0], buffers) if len(handles) == 1 else None
        if plan is not None:
            self._run(plan, handles[0].outputs[0].pointer)
            return
        repeated = buffers if len(handles) == 1 and isinstance(buffers, RepeatedBuffers) else None
        output = handles[0].outputs[0].pointer if repeated is not None else 0
        if request.dtype != QUANTISABLE or not self._host_backend.quantisation_of(request):
            plan = self._reduce(self._reduction(request), self._tensors(handles), output)
            if repeated is not None:
                repeated.plan = self, request, plan
            return
        for those in together(self._host_backend, handles):
            self._allreduce_quantised(those)

    def _allreduce_quantised(self, handles: Sequence[DeviceHandle]) -> None:
        """Reduce large tensors quantised, if the operator allows it, and the others as they are."""
        shapes = tuple(shape for handle in handles for shape in handle.request.shapes)
        request = handles[0].request._replace(shapes=shapes)
        tensors, reduction = self._tensors(handles), self._reduction(request)
        wire, feedback = self._host_backend.wire_of(request), handles[0].feedback if len(handles) == 1 else None
        # Residuals would have to be swapped at each replay of a CUDA graph, and the host does not notice a replay. So
        # operations with error feedback are not quantised in a graph.
        if wire not in QUANTISED or (feedback is not None and self._packer.driver.is_capturing(self.stream)):
            self._reduce(reduction, tensors)
            return
        self._reduce(reduction, [tensor for tensor in tensors if tensor.size < SMALL])
        self._exchange_of_bytes().allreduce(tensors, request, wire, feedback, self.stream)

    def _exchange_of_bytes(self) -> QuantisedExchange:
        if self._exchange is None:
            from distrun.runtime.gpu.quantised.exchange import QuantisedExchange
            from distrun.runtime.gpu.quantised.kernels import Kernels
            from distrun.runtime.gpu.quantised.steps import Resources

            host_backend = self._host_backend
            hosts = HostLayout(tuple(map(tuple, host_backend.host_ranks)), host_backend.rank)
            kernels = Kernels(self._packer.driver)
            resources = Resources(self._communicator, self._packer, kernels, self._fusion, hosts)
            self._exchange = QuantisedExchange(resources)
        return self._exchange

    def _tensors(self, handles: Sequence[DeviceHandle]) -> list[Tensor]:
        """Return all tensors of `handles` that have elements."""
        sizes = [count for handle in handles for shape in handle.request.shapes if (count := math.prod(shape))]
        sources = spans([buffer for handle in handles for buffer in handle.inputs], sizes)
        targets = spans([buffer for handle in handles for buffer in handle.outputs], sizes)
        return [Tensor(*each) for each in zip(sources, targets, sizes, strict=True)]

    def _reduce(self, reduction: NcclReduction, tensors: Sequence[Tensor], output: int = 0) -> PackingPlan:
        plan = self._plan(reduction, tensors, output)
        self._run(plan, output)
        return plan

    def _run(self, plan: PackingPlan, output: int) -> None:
        stream, wire, op, nbytes = self.stream, plan.reduction.wire, plan.reduction.op, plan.slots.nbytes
        plan.bind(self._fusion.pointer(nbytes, stream) if nbytes else 0, output, self._packer)
        calls = plan.calls
        if plan.packs is not None:
            self._packer.queue(plan.packs, stream)
        if calls[1:]:
            with self._communicator.group():
                for call in calls:
                    self._communicator.all_reduce(*call, wire, op, stream)
        elif calls:
            self._communicator.all_reduce(*calls[0], wire, op, stream)
        if plan.unpacks is not None:
            self._packer.queue(plan.unpacks, stream)

    def _plan(self, reduction: NcclReduction, tensors: Sequence[Tensor], output: int) -> PackingPlan:
        """Return the plan of an allreduce of `tensors`. `output`: where the results begin, for a plan that is kept."""
        is_alone = self._communicator.size == 1
        plan = PackingPlan(reduction, is_alone, output)
        if is_alone and len(tensors) > 1 and reduction.is_plain and all(len(each.sources) == 1 for each in tensors):
            for tensor in tensors:  # copied with one launch
                plan.add_copied(*tensor)
            return plan
        limit = PACKED_BELOW // (reduction.units * ITEMSIZES[reduction.dtype])
        small = [tensor for tensor in tensors if tensor.size < limit]
        large = [tensor for tensor in tensors if tensor.size >= limit]
        if len(small) < 2 or is_alone:  # packing would save nothing
            small, large = [], list(tensors)
        for tensor in small:
            plan.add_fused(*tensor)
        if small:
            plan.add_fused_call()
        for tensor in large:
            plan.add_alone(*tensor)
        return plan

    def _copy(self, pieces: Sequence[Piece], source: str, target: str, factor: float) -> None:
        if pieces:
            self._packer.copy(pieces, source, target, factor, self.stream)

    def _reducescatter(self, handle: DeviceHandle, allocate: Allocate) -> None:
        request = handle.request
        reduction = self._reduction(request)
        units, itemsize = reduction.units, ITEMSIZES[reduction.wire]
        rank, slots = self._host_backend.rank, FusionSlots()
        outputs: list[DeviceBuffer] = []
        parts: list[tuple[Location, Location, list[int]]] = []
        packs: list[tuple[int, Location, int]] = []
        unpacks: list[tuple[Location, int, int]] = []
        quantised: list[Callable[[], None]] = []
        for index, (buffer, shape) in enumerate(zip(handle.inputs, request.shapes, strict=True)):
            counts = [count * units for count in counts_of(shape, self._host_backend.size)]
            output = room_for(handle, index, counts[rank] // units, buffer.dtype, allocate)
            outputs.append(output)
            if not sum(counts):
                continue
            if wire := self._scattered_as(request._replace(shapes=(shape,))):
                scatter = self._exchange_of_bytes().reducescatter
                quantised.append(partial(scatter, buffer, counts, output, request, wire, self.stream))
                continue
            source, target = Location(buffer.pointer), Location(output.pointer)
            # Never in place: the input belongs to the caller and must not change.
            if reduction.is_cast or reduction.prescale != 1.0:
                source = slots.add(sum(counts) * itemsize)
                packs.append((buffer.pointer, source, sum(counts)))
            if reduction.is_cast:
                target = slots.add(counts[rank] * itemsize)
            unpacks.append((target, output.pointer, counts[rank]))
            parts.append((source, target, counts))
        base = self._fusion.pointer(slots.nbytes, self.stream)
        self._copy(
            [Piece(source, slot.pointer(base), count) for source, slot, count in packs],
            *(reduction.dtype, reduction.wire, reduction.prescale),
        )
        calls = [
            call
            for source, target, counts in parts
            for call in self._scatter_calls(source.pointer(base), target.pointer(base), counts, reduction)
        ]
        self._queue(calls)
        self._copy(
            [Piece(result.pointer(base), target, count) for result, target, count in unpacks if count],
            *(reduction.wire, reduction.dtype, reduction.postscale),
        )
        for queue in quantised:
            queue()
        if not (slots.nbytes or quantised or reduction.postscale != 1.0):
            self._keep(handle, calls)
        if not isinstance(handle.outputs, RepeatedBuffers):
            handle.outputs = outputs

    def _scattered_as(self, request: Request) -> str:
        """Return the wire type of a reducescatter whose elements are quantised, else ""."""
        wire = self._host_backend.wire_of(request) if request.dtype == QUANTISABLE else ""
        return wire if wire in QUANTISED and self._exchange_of_bytes().can_scatter else ""

    def _scatter_calls(
        self, source: int, target: int, counts: Sequence[int], reduction: NcclReduction
    ) -> Iterator[Queue]:
        """Yield the calls that give each rank its reduced part of one array."""
        communicator, terms = self._communicator, (reduction.wire, reduction.op)
        if len(set(counts)) == 1:
            yield partial(communicator.reduce_scatter, source, target, counts[0], *terms)
            return
        part = source
        for root, count in enumerate(counts):
            if count:
                # NCCL writes the root's target only, but checks the targets of all ranks, and an output without
                # elements has no valid address.
                mine = target if root == communicator.rank else part
                yield partial(communicator.reduce, part, mine, count, *terms, root)
            part += count * ITEMSIZES[reduction.wire]

    # Copies ---------------------------------------------------------------------------------------------------------

    def _broadcast(self, handles: Sequence[DeviceHandle]) -> None:
        if self._communicator.size == 1:
            return
        root = self._ranks.index(handles[0].request.root)
        buffers = [buffer for handle in handles for buffer in handle.outputs if buffer.size]
        calls = [
            partial(self._communicator.broadcast, buffer.pointer, buffer.pointer, buffer.nbytes, BYTES, root)
            for buffer in buffers
        ]
        self._queue(calls)
        if len(handles) == 1:
            self._keep(handles[0], calls)

    def _allgather(self, handles: Sequence[DeviceHandle], allocate: Allocate) -> None:
        calls: list[Queue] = []
        for handle, table in zip(handles, self._gathered(handles), strict=True):
            outputs: list[DeviceBuffer] = []
            first = len(calls)
            for index, (buffer, counts) in enumerate(zip(handle.inputs, table, strict=True)):
                output = room_for(handle, index, sum(counts), buffer.dtype, allocate)
                calls += self._gather_calls(buffer, output, counts)
                outputs.append(output)
            handle.received = table
            if isinstance(handle.outputs, RepeatedBuffers):
                self._keep(handle, calls[first:])
            else:
                handle.outputs = outputs
        self._queue(calls)

    def _gathered(self, handles: Sequence[DeviceHandle]) -> list[list[list[int]]]:
        """Return the number of elements from each rank of each tensor of each handle. The ranks exchange them, unless
        their requests agree about all extents."""
        size = self._host_backend.size
        is_known = all(shape[0] >= 0 for handle in handles for shape in handle.request.shapes)
        if is_known:
            return [[[math.prod(shape)] * size for shape in handle.request.shapes] for handle in handles]
        sizes = np.array([buffer.size for handle in handles for buffer in handle.inputs], np.int64)
        table, _ = self._host_backend.allgather(sizes, describe(handles))
        columns = iter(table.reshape(size, sizes.size).T.tolist())
        return [[next(columns) for _ in handle.inputs] for handle in handles]

    def _gather_calls(self, buffer: DeviceBuffer, output: DeviceBuffer, counts: Sequence[int]) -> Iterator[Queue]:
        """Yield the calls that put every rank's part of one array into every rank's output."""
        communicator = self._communicator
        if not sum(counts):
            return
        if len(set(counts)) == 1:
            yield partial(communicator.all_gather, buffer.pointer, output.pointer, buffer.nbytes, BYTES)
            return
        start = 0
        for root, count in enumerate(counts):
            if count:
                part = output.part(start, start + count)
                source = buffer.pointer if root == communicator.rank else part.pointer
                yield partial(communicator.broadcast, source, part.pointer, part.nbytes, BYTES, root)
            start += count

    def _alltoall(self, handle: DeviceHandle, allocate: Allocate) -> None:
        communicator, stream, splits = self._communicator, self.stream, handle.splits
        (buffer,) = handle.inputs
        received_counts, _ = self._host_backend.alltoall(
            np.array(splits, np.int64), [1] * self._host_backend.size, describe([handle])
        )
        counts = received_counts.tolist()
        output = allocate(handle, sum(counts), buffer.dtype)
        # In a group, sends and receives progress together. One by one, they would deadlock.
        with communicator.group():
            sent = received = 0
            for peer, (split, count) in enumerate(zip(splits, counts, strict=True)):
                if split:
                    part = buffer.part(sent, sent + split)
                    communicator.send(part.pointer, part.nbytes, BYTES, peer, stream)
                if count:
                    part = output.part(received, received + count)
                    communicator.recv(part.pointer, part.nbytes, BYTES, peer, stream)
                sent += split
                received += count
        handle.outputs, handle.received = [output], [counts]
