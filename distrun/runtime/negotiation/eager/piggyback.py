"""Piggybacked payloads: a small array that travels with the message that submits it, between hosts (an eager send).

Every way over the network costs tens of microseconds, however little is sent. So a rank that submits a single small
allreduce sends its array along. If all ranks did, the coordinator combines the arrays and sends the result with its
decision: there and back, and all is done. If not all did (one had several operations to submit, say), the decision is
executed like any other, and the payloads are dropped. Either way the arithmetic is the same, and so are the bits.

Where there are just two ranks, each sends its array to the other (see `sends`). What two ranks have sent each other
cannot be taken back when the operation is given up, so that is not done where there is a stall timeout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from distrun.runtime.backends.base import Flat
from distrun.runtime.backends.dispatch import reduction_of
from distrun.runtime.backends.hierarchical import HierarchicalBackend
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Adasum, Reduction
from distrun.runtime.operations.request import CPU
from distrun.tensor_fusion.packing import unpack

SMALL = 16 << 10
"""Bytes that may come to the coordinator for one operation."""
SMALL_PAIR = 64 << 10
"""Bytes that may travel along between two ranks, whose arrays cross each other."""
_HEADER = 8
"""Bytes before the arrays: the letter of the message, three of padding, the cache id of the request."""
_CACHE_ID = slice(4, 8)


class Piggyback:
    """The payloads that have come along with messages, and those that we have sent along."""

    def __init__(self, backend: HierarchicalBackend, may_offer: bool) -> None:
        """`may_offer`: nothing is ever given up; the same on all ranks."""
        self._backend = backend
        self.makes_offers = may_offer and backend.size == 2
        self._largest = SMALL_PAIR if self.makes_offers else SMALL // (backend.size - 1)
        # Cache id -> rank -> payloads. With two ranks, one that is done may begin the next operation of the same name
        # before the other has looked, hence a queue; None stands for one that the rank submitted without a payload.
        self._received: dict[int, dict[int, deque[bytes | None]]] = {}
        self._sent: set[int] = set()  # the cache ids of the requests for which our payload is under way
        self._eligible: dict[int, bool] = {}  # by cache id
        self._reductions: dict[int, Reduction] = {}

    def is_eligible(self, handle: Handle) -> bool:
        """Whether an operation's arrays may travel with its message; the same for all of its occurrences."""
        known = self._eligible.get(handle.cache_id)
        if known is None:
            known = self._is_eligible(handle)
            if handle.cache_id >= 0:
                self._eligible[handle.cache_id] = known
        return known

    def _is_eligible(self, handle: Handle) -> bool:
        request = handle.request
        return (
            request.kind == "allreduce"
            and request.device == CPU
            and request.name is not None
            and not request.process_set
            and request.op is not Adasum
            and handle.cache_id >= 0
            and request.nbytes <= self._largest
            and not self._backend.wire_of(request)
        )

    def pack(self, letter: bytes, cache_id: int, arrays: Sequence[Flat]) -> bytes:
        """A message with a payload."""
        return b"".join([letter, b"\0\0\0", cache_id.to_bytes(4, "little"), *[array.data for array in arrays]])

    def pack_own(self, letter: bytes, handle: Handle) -> bytes:
        """A message with our payload, if the operation is eligible, which is under way from now on."""
        self._sent.add(handle.cache_id)
        return self.pack(letter, handle.cache_id, handle.inputs if self.is_eligible(handle) else ())

    def receive(self, rank: int, message: bytes) -> int:
        """Keep the payload that a rank has sent along; the cache id of its request."""
        cache_id = cache_id_of(message)
        self._received.setdefault(cache_id, {}).setdefault(rank, deque()).append(message)
        return cache_id

    def note_without(self, rank: int, cache_ids: Sequence[int]) -> None:
        """Note that a rank has submitted these requests without payloads."""
        for cache_id in cache_ids if self._received else ():
            queue = self._received.get(cache_id, {}).get(rank)
            if queue:  # it is ahead of us: the payload before this one belongs to the operation before
                queue.append(None)

    def is_complete(self, cache_id: int) -> bool:
        """Whether every other rank has sent a payload for a request."""
        queues = self._received.get(cache_id, {})
        return len(queues) == self._backend.size - 1 and None not in [queue[0] for queue in queues.values()]

    def have_crossed(self, cache_id: int) -> bool:
        """Whether our payload and the other rank's are both under way: both ranks have, or get, all they need."""
        return self.makes_offers and cache_id in self._sent and self.is_complete(cache_id)

    @property
    def has_received(self) -> bool:
        """Whether payloads wait here."""
        return bool(self._received)

    def forget(self, cache_id: int) -> None:
        """Our payload for a request has reached who needs it, and theirs was not kept here."""
        self._sent.discard(cache_id)

    def take(self, cache_id: int) -> dict[int, bytes]:
        """Take out the payloads that have come for a request, by rank."""
        self._sent.discard(cache_id)
        taken = {}
        queues = self._received.get(cache_id, {})
        for rank in list(queues):
            message = queues[rank].popleft()
            if not queues[rank]:
                del queues[rank]
            if message is not None:
                taken[rank] = message
        if not queues:
            self._received.pop(cache_id, None)
        return taken

    def finish(self, own: Handle, others: Mapping[int, bytes]) -> Flat:
        """Write the result into an operation's outputs, from our own arrays and the payloads of the other ranks; return
        it."""
        cache_id, inputs, outputs = own.cache_id, own.inputs, own.outputs
        how = self._reductions.get(cache_id)
        if how is None:
            how = self._reductions[cache_id] = reduction_of(self._backend, own.request)
        mine = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
        sources = [
            np.frombuffer(others[rank], mine.dtype, offset=_HEADER) if rank in others else mine
            for rank in range(self._backend.size)
        ]
        is_whole = len(outputs) == 1 and outputs[0].size == mine.size
        result = outputs[0] if is_whole else np.empty_like(mine)
        self._backend.combine(sources, how, result)
        if not is_whole:
            self.deliver(own, result)
        return result

    @staticmethod
    def deliver(handle: Handle, result: Flat) -> None:
        """Write a result into an operation's outputs."""
        unpack(result, handle.outputs)

    @staticmethod
    def result_in(message: bytes, handle: Handle) -> Flat:
        """The result in a message that brings it with the decision."""
        return np.frombuffer(message, handle.outputs[0].dtype, offset=_HEADER)


def cache_id_of(message: bytes) -> int:
    """The cache id of the request to which a message's payload belongs."""
    return int.from_bytes(message[_CACHE_ID], "little")
