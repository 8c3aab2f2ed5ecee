"""The exchange: reductions whose elements are quantised between hosts, once each way.

It works as the host backend does (`HierarchicalBackend`, `algorithms.direct`), with the same parts, order of summation
and roundings. So its results have the same bits as if the arrays were in host memory and exchanged directly and in one
piece:

1. Each rail has an equal share of the elements. The ranks of a host send their float32 values of each share to the
   share's rank on their host, which adds them.
2. Each host owns a part of the share. A rank quantises its sums of the other hosts' parts, and sends them to the
   owners.
3. The owner adds the received sums and its own, which was never quantised, in float32 and in the order of the hosts. It
   quantises the result, and sends it to the other hosts.
4. The ranks of each rail pass all results on to the other ranks of their host, still quantised. Every rank, including
   the owner, restores them, so all hold the same bits.

A reducescatter ends with the sum of step 3. The part of each rank is what its host owns of its rail's share, so all
hosts must have the same number of ranks.

Everything is sends and receives on the group's only communicator. A second communicator within each host could reduce
there by NCCL's own kernels, but in an unknown order, and with about as many bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from distrun.runtime.backends.algorithms.base import divided
from distrun.runtime.gpu.buffers import DeviceBuffer
from distrun.runtime.gpu.packing import Tensor
from distrun.runtime.gpu.quantised.places import Places, size_of
from distrun.runtime.gpu.quantised.residuals import DeviceResiduals
from distrun.runtime.gpu.quantised.steps import AllreduceStep, Operation, ReducescatterStep, Resources
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.reduction import Average
from distrun.runtime.operations.request import Request
from distrun.runtime.operations.wire import SMALL
from distrun.tensor_fusion.device_quantisation import Source

MOST_AT_ONCE = 1 << 23
"""The most elements that are exchanged at a time. It bounds the temporary memory, about three times their float32
size."""


class QuantisedExchange:
    """Exchanges of a group, on one rank. One thread at a time calls it, inside `driver.use`.

    Methods raise `NcclError` if NCCL fails, and `CollectiveError` if a kernel cannot be compiled or launched.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._hosts = resources.hosts

    def _operation(
        self, request: Request, wire: str, sources: Iterable[Source], targets: Iterable[Source] = ()
    ) -> Operation:
        factor = request.postscale / (self._resources.communicator.size if request.op is Average else 1)
        return Operation(Places(sources), Places(targets), wire, request.prescale, factor)

    # Allreduce -------------------------------------------------------------------------------------------------------

    def allreduce(
        self, tensors: Sequence[Tensor], request: Request, wire: str, feedback: Feedback | None, stream: int
    ) -> None:
        """Queue the allreduce of those `tensors` that are large.

        Args:
            tensors: all tensors of the operation.
            request: a sum or an average.
            wire: the type on the wire.
            feedback: holds the residuals of the operation.
            stream: the stream to queue on.
        """
        hosts = self._hosts
        sources = _large(tensors, (tensor.sources for tensor in tensors))
        targets = _large(tensors, (tensor.targets for tensor in tensors))
        operation = self._operation(request, wire, sources, targets)
        count = operation.sources.count
        shares = divided(slice(0, count), hosts.rails)
        if not hosts.has_rail:
            feedback = None  # this rank does not quantise
        if feedback is not None:
            self._begin(feedback, shares[hosts.position], operation, stream)
        number = -(-count // MOST_AT_ONCE)
        for pieces in zip(*(divided(share, number) for share in shares), strict=True):
            parts = [divided(piece, hosts.count) for piece in pieces]
            AllreduceStep(self._resources, operation, parts, stream, feedback).queue()
        if feedback is not None:
            feedback.now.written = self._resources.packer.driver.record(stream)

    def _begin(self, feedback: Feedback, share: slice, operation: Operation, stream: int) -> None:
        unit = 1 / operation.prescale
        feedback.begin(
            *(self, share.start, size_of(share), (unit, unit / operation.factor)),
            lambda count: DeviceResiduals(self._resources.packer, count, stream),
        )

    # Reducescatter ---------------------------------------------------------------------------------------------------

    @property
    def can_scatter(self) -> bool:
        """Whether every rank has a rail, as a reducescatter requires. It is the same on all ranks."""
        return self._hosts.rails == self._hosts.most

    def reducescatter(
        self,
        array: DeviceBuffer,
        counts: Sequence[int],
        target: DeviceBuffer,
        request: Request,
        wire: str,
        stream: int,
    ) -> None:
        """Queue the reducescatter of a tensor.

        Args:
            array: the tensor.
            counts: the number of elements of each rank's part.
            target: receives this rank's part.
            request: a sum or an average.
            wire: the type on the wire.
            stream: the stream to queue on.
        """
        ranks = [[those[rail] for those in self._hosts.ranks] for rail in range(self._hosts.rails)]
        bounds = list(accumulate(counts, initial=0))
        whole = Places([Source(array.pointer, array.size)])
        number = -(-array.size // MOST_AT_ONCE)
        for step in range(number):
            # The elements of this step, in the order of the rails and then of the hosts.
            theirs = [divided(slice(*part), number)[step] for part in pairwise(bounds)]
            sources = [source for those in ranks for rank in those for source in whole.part(theirs[rank])]
            parts, start = [], 0
            for those in ranks:
                stops = list(accumulate((size_of(theirs[rank]) for rank in those), initial=start))
                parts.append([slice(*part) for part in pairwise(stops)])
                start = stops[-1]
            mine = theirs[self._hosts.rank].start - bounds[self._hosts.rank]
            operation = self._operation(request, wire, sources)
            out = target.pointer + mine * target.itemsize
            ReducescatterStep(self._resources, operation, parts, stream).queue(out)


def _large(tensors: Sequence[Tensor], spans: Iterable[Sequence[tuple[int, int]]]) -> Iterator[Source]:
    """Yield the places of the elements of `tensors`. Zeros stand for the small ones."""
    for tensor, parts in zip(tensors, spans, strict=True):
        yield from [Source(0, tensor.size)] if tensor.size < SMALL else [Source(*part) for part in parts]
