"""Riding: a small array that travels with the message that submits it, between hosts.

Every way over the network costs tens of microseconds, however little is sent. So a rank that submits a single small allreduce
sends its array along. If all ranks did, the coordinator combines what has come and sends the result with its decision: there
and back, and all is done. If not all did (one had several operations to submit, say), the decision is carried out like any
other, and what has come along is forgotten. Either way the arithmetic is the same, and so are the bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distrun.runtime.backends.base import Flat
from distrun.runtime.backends.hierarchical import HierarchicalBackend
from distrun.runtime.handles import Handle
from distrun.runtime.performing import reduction_of
from distrun.tensor_fusion.packing import unpack

SMALL = 16 << 10
"""Bytes that may come to the coordinator for one operation."""
_HEADER = 5  # bytes: the letter of the message and the number of the request


class Riders:
    """The arrays that have come along with messages; those of one rank are its own business."""

    def __init__(self, backend: HierarchicalBackend) -> None:
        self._backend = backend
        self._largest = SMALL // (backend.size - 1)
        self._aboard: dict[int, dict[int, bytes]] = {}  # number -> rank -> message

    def takes(self, handle: Handle) -> bool:
        """Whether an operation's arrays may come along; the same for all of its occurrences."""
        request = handle.request
        return (
            request.kind == "allreduce"
            and request.name is not None
            and handle.number >= 0
            and request.nbytes <= self._largest
            and not self._backend.wire_of(request)
        )

    def pack(self, letter: bytes, number: int, arrays: Sequence[Flat]) -> bytes:
        """A message with arrays."""
        return b"".join([letter, number.to_bytes(4, "little"), *[array.data for array in arrays]])

    def board(self, rank: int, message: bytes) -> int:
        """Keep what a rank has sent along; the number of its request."""
        number = int.from_bytes(message[1:_HEADER], "little")
        self._aboard.setdefault(number, {})[rank] = message
        return number

    def leave(self, rank: int, numbers: Sequence[int]) -> None:
        """A rank has submitted these requests without arrays."""
        for number in numbers if self._aboard else ():
            self._aboard.get(number, {}).pop(rank, None)

    def clear(self) -> None:
        """Something out of the ordinary has happened."""
        self._aboard.clear()

    def collect(self, numbers: Sequence[int]) -> dict[int, bytes] | None:
        """What has come along, by rank, if these are the numbers of one request for which everybody sent something."""
        collected = [self._aboard.pop(number, {}) for number in numbers] if self._aboard else []
        if len(collected) == 1 and len(collected[0]) == self._backend.size - 1:
            return collected[0]
        return None

    def combine(self, own: Handle, others: dict[int, bytes]) -> Flat:
        """The result, from our own arrays and those that have come along."""
        inputs = own.inputs
        mine = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
        sources = [
            np.frombuffer(others[rank], mine.dtype, offset=_HEADER) if rank in others else mine
            for rank in range(self._backend.size)
        ]
        return self._backend.combine(sources, reduction_of(self._backend, own.request))

    @staticmethod
    def deliver(handle: Handle, message: bytes) -> None:
        """Hand out a result that has come with the decision."""
        unpack(np.frombuffer(message, handle.outputs[0].dtype, offset=_HEADER), handle.outputs)
