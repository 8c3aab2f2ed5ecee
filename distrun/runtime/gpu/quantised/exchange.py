"""The exchange: reductions in which every element travels quantised between hosts, once each way.

It does what the host backend does (`HierarchicalBackend`, `algorithms.direct`), with the same parts, order of summation
and roundings, so that its bits are those of arrays in the hosts' memory wherever those are exchanged directly and in
one piece:

1. Each rail has an equal share of the elements. The ranks of a host send the rank of each rail their values of its
   share, in float32, which adds them up.
2. Of the share, each host owns a part. A rank quantises its sums of the other hosts' parts, and sends them to those.
3. The owner adds up, in float32 and in the order of the hosts, what has come and its own sum, which was never
   quantised. It quantises the result, and sends it to the other hosts.
4. The ranks of each rail pass all results on to the other ranks of their host, quantised as they are. Every rank, the
   owner too, restores them: so all hold the same bits.

A reducescatter ends with the sum of step 3. The part of each rank is what its host owns of its rail's share, so all
hosts must have as many ranks.

All of it is sends and receives of the one communicator that the group has. A second one within each host could reduce
there by NCCL's own kernels, in an order that nobody knows, for about as many bytes.
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
"""Elements that are exchanged at a time: a bound for the memory in between, about three times theirs in float32."""


class QuantisedExchange:
    """One rank's part in the exchanges of a group. One thread at a time calls, inside `driver.use()`.

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
        """Queue the allreduce of those tensors that are large.

        Args:
            tensors: all of the operation.
            request: a sum or an average.
            wire: the type on the wire.
            feedback: makes up for what was lost the last time.
            stream: on which to queue.
        """
        hosts = self._hosts
        sources = _large(tensors, (tensor.sources for tensor in tensors))
        targets = _large(tensors, (tensor.targets for tensor in tensors))
        operation = self._operation(request, wire, sources, targets)
        count = operation.sources.count
        shares = divided(slice(0, count), hosts.rails)
        if not hosts.has_rail:
            feedback = None  # this rank quantises nothing
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
        """Whether every rank has a rail, as a reducescatter needs it; the same on all ranks."""
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
            counts: the elements of each rank's part.
            target: where this rank's part goes.
            request: a sum or an average.
            wire: the type on the wire.
            stream: on which to queue.
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
    """Yield where the elements of tensors lie; zeros stand for the small ones."""
    for tensor, parts in zip(tensors, spans, strict=True):
        yield from [Source(0, tensor.size)] if tensor.size < SMALL else [Source(*part) for part in parts]
