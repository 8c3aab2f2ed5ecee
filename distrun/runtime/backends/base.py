"""The interface of a backend: each collective on host arrays, called in the same order by every rank of its group.

Arrays are flat, contiguous and of a storage dtype (see `operations.dtypes`) unless said otherwise. The engine has
already made sure that all ranks agree on everything except sizes that may differ between ranks. `what` names the
operation for error messages. Every method may raise `JobAbortedError` or `StallError`. The backend is unusable
afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.reduction import Reduction
from distrun.runtime.operations.request import Request
from distrun.tensor_fusion.packing import pack

Flat = NDArray[Any]


class Backend(ABC):
    """A group of ranks that can execute collectives. `rank` and `size` are positions in the group."""

    name: ClassVar[str]
    rank: int
    size: int

    def empty(self, count: int, dtype: np.dtype[Any]) -> Flat:
        """Return an uninitialised flat array in the memory that this backend reads fastest."""
        return np.empty(count, dtype)

    @property
    def host_ranks(self) -> Sequence[Sequence[int]]:
        """The ranks of each host."""
        return [range(self.size)]

    @property
    def shared_bytes(self) -> int:
        """The bytes that this rank uses of the memory it shares with others."""
        return 0

    def wire_of(self, request: Request) -> str:
        """Return the type of a request's elements between hosts, one of `WIRE_DTYPES`, or "" for their own type."""
        return ""

    def quantisation_of(self, request: Request) -> str:
        """Return the quantised type that a request asks for, if any, else "". Small tensors are not quantised even
        so."""
        return ""

    @abstractmethod
    def allreduce(
        self,
        inputs: Sequence[Flat],
        outputs: Sequence[Flat],
        reduction: Reduction,
        what: str,
        feedback: Feedback | None = None,
    ) -> None:
        """Reduce `inputs` over the ranks into `outputs`.

        Each list is taken as one long array. The two lists may be divided at different places, and `outputs` may be
        `inputs`. `feedback` holds the residuals of the operation's quantisation. Backends that do not quantise ignore
        it.
        """

    def combine(self, sources: Sequence[Flat], reduction: Reduction, result: Flat) -> None:
        """Combine `sources`, all ranks' arrays in rank order, into `result`, with the bits that `allreduce` would give.

        `result` may be one of the sources.
        """
        reduction.combine(sources, [result])

    @abstractmethod
    def allgather(self, array: Flat, what: str, room: Flat | None = None) -> tuple[Flat, list[int]]:
        """Return the ranks' arrays, of any sizes, one after the other, and the number of elements from each rank.

        The result is written into `room` if that is given and has the result's size. `array` may be its own part of
        `room`.
        """

    @abstractmethod
    def broadcast(self, array: Flat, root: int, what: str) -> None:
        """Copy the root's `array` into `array` on every rank. `root` is a position in the group."""

    @abstractmethod
    def alltoall(self, array: Flat, splits: Sequence[int], what: str) -> tuple[Flat, list[int]]:
        """Send `splits[i]` elements to rank i. Return the received elements, in rank order, and their number by
        rank."""

    @abstractmethod
    def reducescatter(
        self, array: Flat, counts: Sequence[int], reduction: Reduction, what: str, room: Flat | None = None
    ) -> Flat:
        """Reduce `array` over the ranks and return this rank's part of the result, `counts[rank]` elements.

        `counts` sums to `array.size`. The result may be written into `room`, which must have the result's size and must
        not overlap `array`.
        """

    @abstractmethod
    def barrier(self, what: str) -> None:
        """Return when all ranks have called this."""

    def close(self) -> None:  # noqa: B027 - most backends hold nothing
        """Release what the backend holds."""


def source_and_target(inputs: Sequence[Flat], outputs: Sequence[Flat]) -> tuple[Flat, Flat]:
    """Return one array with all inputs, and one for the result.

    The caller unpacks the result unless its array is the only output.
    """
    source = inputs[0]
    if len(inputs) > 1:
        source = np.empty(sum(map(len, inputs)), source.dtype)
        pack(inputs, source)
    target = outputs[0] if len(outputs) == 1 else source if len(inputs) > 1 else np.empty_like(source)
    return source, target


def split(array: Flat, counts: Sequence[int]) -> list[Flat]:
    """Return the consecutive parts of `array` that have `counts` elements."""
    return [array[stop - count : stop] for stop, count in zip(accumulate(counts), counts, strict=True)]


def result_array(room: Flat | None, count: int, dtype: np.dtype[Any]) -> Flat:
    """Return `room` if it is given and has `count` elements, else a new array, for a result of `count` elements."""
    return room if room is not None and room.size == count else np.empty(count, dtype)
