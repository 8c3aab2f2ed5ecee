"""A collective in a graph: described when the graph is made, carried out on the framework's own memory when it runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.runtime import world
from distrun.runtime.collectives.copies import rows_per_rank
from distrun.runtime.operations.dtypes import ELEMENT_TYPES
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Average, ReduceOp, check_op
from distrun.runtime.operations.request import Request, Shape

Flat = NDArray[Any]
"""One-dimensional and contiguous, of the storage dtype of its element type (uint16 for bfloat16)."""

ALIGNMENT = 64
"""Bytes: TensorFlow copies an array that begins elsewhere than at a multiple of this."""


@dataclass(frozen=True)
class Collective:
    """Everything about a collective but the tensors.

    In a graph every operation has a name, the same on all ranks. Elsewhere one without (an empty one) is matched by its order.
    """

    kind: str
    name: str
    op: ReduceOp = Average
    root: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: int = 0
    wire: str = ""
    site: str = ""
    """Where in user code it was put into the graph, for error messages."""

    def named(self, suffix: str) -> Collective:
        """The same for an operation that goes with this one; one without a name stays so."""
        return replace(self, name=self.name and f"{self.name}.{suffix}")

    def encode(self) -> str:
        """As a text that a node of a graph can carry."""
        return json.dumps(asdict(self) | {"op": int(self.op)})

    @staticmethod
    @lru_cache(maxsize=4096)
    def decode(text: str) -> Collective:
        """The inverse of `encode`."""
        fields = json.loads(text)
        return Collective(**fields | {"op": ReduceOp(fields["op"])})


class Prepared:
    """A collective for tensors of known element types and shapes. Make it with `prepare`, which remembers."""

    def __init__(self, collective: Collective, dtypes: tuple[str, ...], shapes: tuple[Shape, ...]) -> None:
        self._site = collective.site
        groups: dict[str, list[int]] = {}
        for place, dtype in enumerate(dtypes):
            groups.setdefault(dtype, []).append(place)
        if collective.kind == "allreduce":  # whichever way its results take: the ranks must agree on the order
            for places in groups.values():
                places.sort(key=lambda place: _nbytes(dtypes[place], shapes[place]) % ALIGNMENT > 0)
        self._groups = [  # the first one keeps the name, so that a rank elsewhere in its program clashes with it
            (
                _request(collective.named(dtype) if number else collective, dtype, [shapes[place] for place in places]),
                places,
            )
            for number, (dtype, places) in enumerate(groups.items())
        ]

    def reduce(self, inputs: Sequence[Flat], outputs: Sequence[Flat]) -> None:
        """Allreduce, or broadcast: the results go to `outputs`, which may be the inputs' own memory. Waits.

        Raises:
            CollectiveError: see `Handle.wait`.
        """
        handles = []
        for request, places in self._groups:
            mine = [outputs[place] for place in places]
            if request.kind == "broadcast":
                if world.rank() == request.root:
                    for place in places:
                        if outputs[place] is not inputs[place]:
                            outputs[place][:] = inputs[place]
                handles.append(self._handle(request, (), mine))
            else:
                handles.append(self._handle(request, [inputs[place] for place in places], mine))
        _run(handles)

    def reduce_into(self, inputs: Sequence[Flat], room: Flat) -> list[Flat]:
        """An allreduce of tensors of one element type. The results fill `room`, and are parts of it. Waits.

        Those that would put others behind them on addresses that are no multiples of `ALIGNMENT` come last.

        Raises:
            CollectiveError: see `Handle.wait`.
        """
        ((request, places),) = self._groups
        _run([self._handle(request, [inputs[place] for place in places], [room])])
        results = list(inputs)
        start = 0
        for place in places:
            stop = start + inputs[place].size
            results[place] = room[start:stop]
            start = stop
        return results

    def gather(self, inputs: Sequence[Flat], splits: Sequence[int] | None = None) -> list[tuple[Flat, list[int]]]:
        """Allgather, alltoall or reducescatter: for each input a new array and the elements that came from each rank. Waits.

        `splits` are the elements to send to each rank in an alltoall. A row without elements travels as one element.

        Raises:
            CollectiveError: see `Handle.wait`.
        """
        results: list[tuple[Flat, list[int]]] = [(np.empty(0), [])] * len(inputs)
        handles = []
        for request, places in self._groups:
            handle = self._handle(request, [inputs[place] for place in places], ())
            if request.kind == "alltoall":
                size = world.size()
                handle.splits = rows_per_rank(inputs[0].size, splits, size)
            handles.append(handle)
        _run(handles)
        for handle, (_, places) in zip(handles, self._groups, strict=True):
            received = handle.received or [[]] * len(places)
            for place, output, counts in zip(places, handle.outputs, received, strict=True):
                results[place] = output, counts
        return results

    def _handle(self, request: Request, inputs: Sequence[Flat], outputs: Sequence[Flat]) -> Handle:
        handle = Handle(world.engine(), request, inputs, outputs)
        handle.site = self._site
        return handle


@lru_cache(maxsize=4096)
def prepare(collective: Collective, dtypes: tuple[str, ...], shapes: tuple[Shape, ...]) -> Prepared:
    """A collective for tensors of these element types (names) and shapes. Costs nothing from the second time on."""
    return Prepared(collective, dtypes, shapes)


def storage_of(dtype: str) -> np.dtype[Any]:
    """The numpy dtype in which elements of a type lie in memory."""
    return ELEMENT_TYPES[dtype].storage


def _nbytes(dtype: str, shape: Shape) -> int:
    return prod(shape) * storage_of(dtype).itemsize


def _request(collective: Collective, dtype: str, shapes: Sequence[Shape]) -> Request:
    if collective.kind in ("allreduce", "reducescatter"):
        check_op(collective.op, dtype)
    if collective.kind in ("allgather", "alltoall"):
        shapes = [(-1, *shape[1:]) for shape in shapes]
    return Request(
        collective.kind,
        collective.name or None,
        dtype,
        tuple(shapes),
        collective.op,
        collective.root,
        collective.prescale,
        collective.postscale,
        collective.process_set,
        wire=collective.wire,
    )


def _run(handles: Sequence[Handle]) -> None:
    """One after the other: when one fails, the caller takes its memory back, and none may be under way in it."""
    for handle in handles:
        handle.engine.run(handle).wait()
