"""Riding: a small array that travels with the message that submits it, between hosts.

Every way over the network costs tens of microseconds, however little is sent. So a rank that submits a single small allreduce
sends its array along. If all ranks did, the coordinator combines what has come and sends the result with its decision: there
and back, and all is done. If not all did (one had several operations to submit, say), the decision is carried out like any
other, and what has come along is forgotten. Either way the arithmetic is the same, and so are the bits.

Where there are just two ranks, the coordinator sends its own array as soon as it submits it: an offer. Two arrays that pass
each other on the way are all that is needed: each rank combines them, and nobody says anything more. An offer is void when the
other rank submits the operation in another way. (It could not be taken back when the operation is given up, so there are no
offers where there is a stall timeout.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from distrun.runtime.backends.base import Flat
from distrun.runtime.backends.dispatch import reduction_of
from distrun.runtime.backends.hierarchical import HierarchicalBackend
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import CPU
from distrun.tensor_fusion.packing import unpack

SMALL = 16 << 10
"""Bytes that may come to the coordinator for one operation."""
SMALL_PAIR = 64 << 10
"""The same for two ranks, whose arrays pass each other."""
_HEADER = 8
"""Bytes before the arrays: the letter of the message, the number of the request at `_NUMBER`."""
_NUMBER = slice(4, 8)


class Piggyback:
    """The arrays that have come along with messages, or were sent along."""

    def __init__(self, backend: HierarchicalBackend, may_offer: bool) -> None:
        """`may_offer`: nothing is ever given up; the same on all ranks."""
        self._backend = backend
        self.makes_offers = may_offer and backend.size == 2
        self._largest = SMALL_PAIR if self.makes_offers else SMALL // (backend.size - 1)
        # Number -> rank -> messages. With two ranks, one that is done may begin the next of the same name before the other has
        # looked; None is one that it submitted in another way.
        self._received: dict[int, dict[int, deque[bytes | None]]] = {}
        self._sent: set[int] = set()  # the numbers of the requests for which ours are under way

    def takes(self, handle: Handle) -> bool:
        """Whether an operation's arrays may come along; the same for all of its occurrences."""
        request = handle.request
        return (
            request.kind == "allreduce"
            and request.device == CPU
            and request.name is not None
            and handle.number >= 0
            and request.nbytes <= self._largest
            and not self._backend.wire_of(request)
        )

    def pack(self, letter: bytes, number: int, arrays: Sequence[Flat]) -> bytes:
        """A message with arrays."""
        return b"".join([letter, b"\0\0\0", number.to_bytes(4, "little"), *[array.data for array in arrays]])

    def send(self, letter: bytes, handle: Handle) -> bytes:
        """A message with our arrays, which are under way from now on."""
        self._sent.add(handle.number)
        return self.pack(letter, handle.number, handle.inputs)

    def board(self, rank: int, message: bytes) -> int:
        """Keep what a rank has sent along; the number of its request."""
        number = number_of(message)
        self._received.setdefault(number, {}).setdefault(rank, deque()).append(message)
        return number

    def leave(self, rank: int, numbers: Sequence[int]) -> None:
        """A rank has submitted these requests without arrays."""
        for number in numbers if self._received else ():
            queue = self._received.get(number, {}).get(rank)
            if queue:  # it is ahead of us: what it sent before belongs to the time before
                queue.append(None)

    def is_complete(self, number: int) -> bool:
        """Whether everybody has sent something for a request."""
        queues = self._received.get(number, {})
        return len(queues) == self._backend.size - 1 and None not in [queue[0] for queue in queues.values()]

    def have_passed(self, number: int) -> bool:
        """Whether ours and the other's have passed each other: both ranks have all they need."""
        return self.makes_offers and number in self._sent and self.is_complete(number)

    def take(self, number: int) -> dict[int, bytes]:
        """What has come along for a request, by rank; it is forgotten here."""
        self._sent.discard(number)
        taken = {}
        queues = self._received.get(number, {})
        for rank in list(queues):
            message = queues[rank].popleft()
            if not queues[rank]:
                del queues[rank]
            if message is not None:
                taken[rank] = message
        if not queues:
            self._received.pop(number, None)
        return taken

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
    def deliver(handle: Handle, result: Flat) -> None:
        """Hand out a result."""
        unpack(result, handle.outputs)

    @staticmethod
    def result_in(message: bytes, handle: Handle) -> Flat:
        """The result that has come with a decision."""
        return np.frombuffer(message, handle.outputs[0].dtype, offset=_HEADER)


def number_of(message: bytes) -> int:
    """The number of the request to which a message's arrays belong."""
    return int.from_bytes(message[_NUMBER], "little")
