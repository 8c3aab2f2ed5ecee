"""Prepared calls: planned when the shapes are known, and executed on the framework's memory when the graph runs."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from distrun.graphs import residuals as residuals
from distrun.graphs.low_rank import LowRankMatrices
from distrun.runtime.collectives.call import Call, rows_per_rank
from distrun.runtime.operations.dtypes import ELEMENT_TYPES
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request, Shape
from distrun.runtime.world import world
from distrun.tensor_fusion.low_rank import rank_of
from distrun.tracing import gradients

Flat = NDArray[Any]
"""A flat, contiguous array of the storage dtype of its element type (uint16 for bfloat16)."""

Result = TypeVar("Result")

Operations = Generator[Handle, None, Result]
"""Operations to execute one after the other: the consumer runs and waits for each before it asks for the next. So if
one fails, no other is in flight in the caller's memory, which the caller may reuse."""

ALIGNMENT = 64
"""In bytes. TensorFlow copies arrays that do not begin at a multiple of this."""


class Prepared:
    """A call, planned for tensors of known element types and shapes. Make it with `prepare`, which caches it."""

    def __init__(self, call: Call, dtypes: tuple[str, ...], shapes: tuple[Shape, ...]) -> None:
        self._site = call.site
        self._is_gradient = call.is_gradient
        self._process_set = call.process_set
        reduced = call
        self._matrices: LowRankMatrices | None = None
        if rank := rank_of(call.wire):
            call = call._replace(wire="")
            self._matrices = LowRankMatrices(call, rank, dtypes, shapes)
        groups: dict[str, list[int]] = {}
        for place, dtype in enumerate(dtypes):
            if self._matrices is None or place not in self._matrices.places:
                groups.setdefault(dtype, []).append(place)
        if call.kind == "allreduce":  # in `reduce` as well, not only `reduce_into`: all ranks must agree on the order
            for places in groups.values():
                places.sort(key=lambda place: _nbytes(dtypes[place], shapes[place]) % ALIGNMENT > 0)
        # The first group keeps the name, so that a mismatch is detected if another rank is elsewhere in its program.
        self._groups = [
            ((call.named(dtype) if number else call).request(dtype, tuple([shapes[place] for place in places])), places)
            for number, (dtype, places) in enumerate(groups.items())
        ]
        self._residuals: residuals.CallResiduals | None = None
        if residuals.are_kept_of(reduced):
            self._residuals = residuals.CallResiduals(reduced, dtypes, shapes, self._matrices)

    def reduce(self, inputs: Sequence[Flat], outputs: Sequence[Flat]) -> None:
        """Execute an allreduce or a broadcast, and wait. See `reduction`."""
        complete(self.reduction(inputs, outputs))

    def reduction(self, inputs: Sequence[Flat], outputs: Sequence[Flat]) -> Operations[None]:
        """Execute an allreduce or a broadcast, yielding its operations. Results go to `outputs`, which may be
        `inputs`."""
        if self._residuals is not None:
            inputs = self._residuals.begin(inputs)
        for request, places in self._groups:
            mine = [outputs[place] for place in places]
            if request.kind == "broadcast":
                if world.rank() == request.root:
                    for place in places:
                        if outputs[place] is not inputs[place]:
                            outputs[place][:] = inputs[place]
                yield self._handle(request, (), mine)
            else:
                yield self._reducing(request, places, inputs, mine)
        if self._matrices is not None:
            yield from self._matrices.reduction(inputs, outputs)
        if self._residuals is not None:
            self._residuals.end()

    def reduce_into(self, inputs: Sequence[Flat], room: Flat) -> list[Flat]:
        """Execute an allreduce of tensors of one element type, and wait. Return the results, which fill `room`.

        Results whose size is not a multiple of `ALIGNMENT` are last in `room`, so that they do not misalign others.
        """
        if self._matrices is not None:
            results = np.split(room, np.cumsum([array.size for array in inputs])[:-1])
            self.reduce(inputs, results)
            return results
        ((request, places),) = self._groups
        if self._residuals is not None:
            inputs = self._residuals.begin(inputs)
        handle = self._reducing(request, places, inputs, [room])
        handle.engine.run(handle).wait()
        if self._residuals is not None:
            self._residuals.end()
        results = list(inputs)
        start = 0
        for place in places:
            stop = start + inputs[place].size
            results[place] = room[start:stop]
            start = stop
        return results

    def row_exchange(
        self, inputs: Sequence[Flat], splits: Sequence[int] | None = None
    ) -> Operations[list[tuple[Flat, list[int]]]]:
        """Execute an allgather, an alltoall or a reducescatter, yielding its operations.

        Args:
            inputs: flat storage. A row without elements is sent as one element.
            splits: the number of elements to send to each rank in an alltoall.

        Returns:
            For each input, a new array, and the number of elements that came from each rank.
        """
        results: list[tuple[Flat, list[int]]] = [(np.empty(0), [])] * len(inputs)
        for request, places in self._groups:
            handle = self._handle(request, [inputs[place] for place in places], ())
            if request.kind == "alltoall":
                handle.splits = rows_per_rank(inputs[0].size, splits, self._process_set.size())
            yield handle
            received = handle.received or [[]] * len(places)
            for place, output, counts in zip(places, handle.outputs, received, strict=True):
                results[place] = output, counts
        return results

    def _handle(self, request: Request, inputs: Sequence[Flat], outputs: Sequence[Flat]) -> Handle:
        engine = world.engine()
        handle = Handle(engine, request, inputs, outputs)
        handle.site = self._site
        return handle

    def _reducing(
        self, request: Request, places: Sequence[int], inputs: Sequence[Flat], outputs: Sequence[Flat]
    ) -> Handle:
        handle = self._handle(request, [inputs[place] for place in places], outputs)
        if self._is_gradient and gradients.are_open:
            gradients.note(request.name or "", handle.inputs)
        if self._residuals is not None:
            handle.feedback = self._residuals.feedback(request, places)
        return handle


@lru_cache(maxsize=4096)
def prepare(call: Call, dtypes: tuple[str, ...], shapes: tuple[Shape, ...]) -> Prepared:
    """Return `call` planned for tensors of these element types (names) and shapes. The result is cached."""
    return Prepared(call, dtypes, shapes)


world.on_leaving(prepare.cache_clear)  # the numbers of process sets have another meaning in the next world


def storage_of(dtype: str) -> np.dtype[Any]:
    """Return the numpy dtype that stores elements of the type `dtype`."""
    return ELEMENT_TYPES[dtype].storage


def _nbytes(dtype: str, shape: Shape) -> int:
    return prod(shape) * storage_of(dtype).itemsize


def complete(operations: Operations[Result]) -> Result:
    """Execute `operations` in this thread, and return their result."""
    try:
        while True:
            handle = next(operations)
            handle.engine.run(handle).wait()
    except StopIteration as end:
        result: Result = end.value
        return result
