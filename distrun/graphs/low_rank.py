"""PowerSGD in graphs: the tensors of a call that are approximated, and the operations that average them."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.runtime.collectives.call import Call
from distrun.runtime.collectives.residuals import Residual
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Sum
from distrun.runtime.operations.request import Request, Shape
from distrun.runtime.world import world
from distrun.tensor_fusion.low_rank import LowRank, is_worthwhile

_APPROXIMATED = ("float32", "float64")

Flat = NDArray[Any]


class LowRankMatrices:
    """The approximated tensors of a call."""

    def __init__(self, call: Call, rank: int, dtypes: Sequence[str], shapes: Sequence[Shape]) -> None:
        """`dtypes` and `shapes` are of all tensors of the call."""
        self.places = [
            place
            for place, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True))
            if dtype in _APPROXIMATED and is_worthwhile(shape, rank)
        ]
        """The indices of the approximated tensors in the call."""
        self._site, self._op, self._process_set = call.site, call.op, call.process_set
        self._matrices = [(place, shapes[place], LowRank(shapes[place], rank, _random(place))) for place in self.places]
        rows = [(shape[0], rank) for _, shape, _ in self._matrices]
        columns = [(int(np.prod(shape[1:])), rank) for _, shape, _ in self._matrices]
        self._first = call.named("first").request("float32", tuple(rows))
        self._second = call.named("second").request("float32", tuple(columns))

    def reduction(self, inputs: Sequence[Flat], outputs: Sequence[Flat]) -> Generator[Handle, None, None]:
        """Execute the two allreduces of PowerSGD, yielding each. The results go to `outputs`, which may be `inputs`."""
        if not self.places:
            return
        with np.errstate(all="ignore"):
            given = [
                approximation.project(inputs[place].reshape(shape).astype(np.float32, copy=False))
                for place, shape, approximation in self._matrices
            ]
        handle = self._handle(self._first, given)
        yield handle
        with np.errstate(all="ignore"):
            parts = zip(self._matrices, _cut(handle, self._first), strict=True)
            given = [approximation.look(p) for (_, _, approximation), p in parts]
        handle = self._handle(self._second, given)
        yield handle
        ranks = self._process_set.size() if self._op is Sum else 1
        with np.errstate(all="ignore"):
            for (place, _, approximation), q in zip(self._matrices, _cut(handle, self._second), strict=True):
                outputs[place][:] = approximation.result(q, ranks).reshape(-1)

    def keep(self) -> None:
        """Keep the new residuals, because the results are used. See `LowRank.keep`."""
        for _, _, approximation in self._matrices:
            approximation.keep()

    def discard(self) -> None:
        """Discard the new residuals, because the results are not used."""
        for _, _, approximation in self._matrices:
            approximation.discard()

    def residuals(self) -> dict[int, Residual]:
        """Return the residuals, by index in the call. The arrays are not changed later."""
        residuals = {}
        for place, shape, approximation in self._matrices:
            q, lost = approximation.state()
            if lost is not None:
                residuals[place] = Residual(lost.reshape(shape), q)
        return residuals

    def load_residuals(self, residuals: Mapping[int, Residual]) -> None:
        """Replace all residuals by these, by index in the call."""
        for place, _, approximation in self._matrices:
            residual = residuals.get(place, Residual())
            q = residual.q
            if q is not None and q.shape != approximation.state()[0].shape:
                q = None  # of a PowerSGD with another rank
            approximation.load(q, residual.lost)

    def _handle(self, request: Request, matrices: Sequence[Flat]) -> Handle:
        arrays = [np.ascontiguousarray(matrix, np.float32).reshape(-1) for matrix in matrices]
        handle = Handle(world.engine(), request, arrays, arrays)
        handle.site = self._site
        return handle


def _cut(handle: Handle, request: Request) -> list[Flat]:
    return [array.reshape(shape) for array, shape in zip(handle.outputs, request.shapes, strict=True)]


def _random(place: int) -> Any:
    return lambda rows, columns: np.random.default_rng(place).standard_normal((rows, columns), np.float32)
