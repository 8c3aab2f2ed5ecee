"""The bucket of PowerSGD: gradients of matrices travel as two thin ones, in two operations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from distrun.runtime.collectives.call import Call
from distrun.runtime.collectives.compressors import NoneCompressor
from distrun.runtime.collectives.residuals import Residual
from distrun.runtime.operations.reduction import Sum
from distrun.tensor_fusion.low_rank import LowRank, is_worthwhile
from distrun.torch import operations
from distrun.torch.gradients.bucket import Start, failed_elsewhere, flags_of
from distrun.torch.gradients.odd_buckets import CompressedBucket


class LowRankBucket(CompressedBucket):
    """Approximates gradients where that saves enough (see `LowRank`), and sends the others as they are.

    The others travel with the first of the two operations, which begins as soon as all gradients are complete. The
    second one begins when the first is received.
    """

    def __init__(
        self,
        call: Call,
        places: Sequence[int],
        parameters: Sequence[Tensor],
        rank: int,
        sparse_dims: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """`rank` is the rank of the approximations. `call.op` is Average or Sum."""
        super().__init__(call, places, parameters, NoneCompressor(), sparse_dims)
        self._approximations = {
            index: LowRank(parameter.shape, rank, _random(place, parameter))
            for index, (place, parameter) in enumerate(zip(places, parameters, strict=True))
            if is_worthwhile(parameter.shape, rank)
        }
        self._given: list[weakref.ref[Tensor]] = []

    def keep(self) -> None:
        for approximation in self._approximations.values():
            approximation.keep()
        self._given = []

    def holds(self, gradient: Tensor) -> bool:
        return any(reference() is gradient for reference in self._given)

    def residuals(self) -> dict[int, Residual]:
        residuals = {}
        for index, approximation in self._approximations.items():
            q, lost = approximation.state()
            residuals[index] = Residual(None if lost is None else lost.reshape(self.parameters[index].shape), q)
        return residuals

    def load_residuals(self, residuals: Mapping[int, Residual]) -> None:
        for index, approximation in self._approximations.items():
            device, residual = self.parameters[index].device, residuals.get(index, Residual())
            lost, q = residual.lost, residual.q
            if q is not None and q.shape != approximation.state()[0].shape:
                q = None  # of an approximation with another rank
            approximation.load(None if q is None else q.to(device), None if lost is None else lost.to(device))

    def _compressed(self) -> list[Tensor]:
        tensors = []
        for index, parameter in enumerate(self.parameters):
            gradient = self._gradient(parameter, index)
            approximation = self._approximations.get(index)
            tensors.append(gradient if approximation is None else approximation.project(gradient.float()))
        return tensors

    @torch.no_grad()
    def forfeit(self, start: Start) -> None:
        """See `Bucket.forfeit`. Flags that are NaN tell all ranks that this rank has no valid gradients."""
        self._start(start, [float("nan")] * len(self.parameters))

    def drop(self) -> None:
        """See `Bucket.drop`. Other ranks may use their gradients, so this rank takes part in the second operation as
        well."""
        if self._handle is not None:
            self._reduced()
        for approximation in self._approximations.values():
            approximation.discard()

    def receive(self) -> None:
        found = self._reduced()
        if found is None:
            raise failed_elsewhere(self.call.name)
        _, absent = flags_of(self.call.op)
        self._given = []
        for index, (parameter, gradient, flag) in enumerate(zip(self.parameters, *found, strict=True)):
            if flag != absent:
                gradient = self.as_it_came(gradient.to(parameter.dtype).reshape(parameter.shape), index)
                parameter.grad = gradient
                self._given.append(weakref.ref(gradient))

    @torch.no_grad()
    def _reduced(self) -> tuple[list[Tensor], list[float]] | None:
        """Wait for both operations. Return gradients and flags, or None if a rank has forfeited them (see
        `forfeit`)."""
        if self._arrivals is not None:
            self._arrivals.clear()
        handle, self._handle = self._handle, None
        assert handle is not None
        *reduced, flags = handle.wait()
        found = flags.tolist()
        if found[0] != found[0]:
            return None
        if self._approximations:  # the first operation gave products of these gradients
            thin = [approximation.look(reduced[index]) for index, approximation in self._approximations.items()]
            thin = operations.grouped(thin, self.call.named("second"), operations.allreduce, operations.run).wait()
            ranks = self.call.process_set.size() if self.call.op is Sum else 1
            for (index, approximation), q in zip(self._approximations.items(), thin, strict=True):
                reduced[index] = approximation.result(q, ranks)
        return reduced, found


def _random(place: int, parameter: Tensor) -> Callable[[int, int], Tensor]:
    def draw(rows: int, columns: int) -> Tensor:
        generator = torch.Generator().manual_seed(place)
        return torch.randn(rows, columns, generator=generator, device="cpu").to(parameter.device)

    return draw
