"""The interface of a backend: each collective on host arrays, called in the same order by every rank of its group.

Arrays are flat, contiguous and of a storage dtype (see `operations.dtypes`) unless said otherwise. The engine has
already made sure that all ranks agree on everything but the sizes in which they may differ. `what` names the operation
for error messages. Every method may raise `JobAbortedError` or `StallError`, after which the backend cannot be used any
more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.reduction import Reduction
from distrun.runtime.operations.request import Request

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
        """Return the type in which a request's elements travel between hosts, one of `WIRE_DTYPES`; empty if in their
        own."""
        return ""

    def quantisation_of(self, request: Request) -> str:
        """Return the type in which a request's elements travel if they are quantised and the tensors large enough; else
        an empty text."""
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

        Each list is taken as one long array, and the two may be cut at different places; the outputs may be the inputs.
        `feedback` makes up for what quantisation has taken before; backends that quantise nothing do nothing with it.
        """

    @abstractmethod
    def allgather(self, array: Flat, what: str, room: Flat | None = None) -> tuple[Flat, list[int]]:
        """Return the ranks' arrays, of any sizes, one after the other, and the number of elements from each rank.

        The result may be formed in `room` if that has its size. `array` may be the part of `room` where it goes.
        """

    @abstractmethod
    def broadcast(self, array: Flat, root: int, what: str) -> None:
        """Copy the root's array into every rank's."""

    @abstractmethod
    def alltoall(self, array: Flat, splits: Sequence[int], what: str) -> tuple[Flat, list[int]]:
        """Send `splits[i]` elements to rank i; return the received elements, by rank, and their number from each
        rank."""

    @abstractmethod
    def reducescatter(
        self, array: Flat, counts: Sequence[int], reduction: Reduction, what: str, room: Flat | None = None
    ) -> Flat:
        """Reduce over the ranks; return this rank's part, `counts[rank]` elements. `counts` sums to `array.size`.

        The result may be formed in `room` if that is given; it has its size, and nothing in common with `array`.
        """

    @abstractmethod
    def barrier(self, what: str) -> None:
        """Return when all ranks have called this."""

    def close(self) -> None:  # noqa: B027 - most backends hold nothing
        """Release what the backend holds."""


def result_array(room: Flat | None, count: int, dtype: np.dtype[Any]) -> Flat:
    """Return where a result of so many elements is formed: in `room` if that has its size."""
    return room if room is not None and room.size == count else np.empty(count, dtype)
