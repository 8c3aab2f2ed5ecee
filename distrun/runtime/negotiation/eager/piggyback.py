"""Piggybacked payloads: a small array that travels with the message that submits it (an eager send): between hosts, and
between two ranks of one host.

A message over the network costs tens of microseconds, however short it is. So a rank that submits a single small
allreduce sends its array along. If all ranks did, the coordinator combines the arrays and sends the result with its
decision: one round trip completes the operation. If not all did (one rank had several operations to submit, for
example), the decision is executed like any other, and the payloads are dropped. Either way the arithmetic is the same,
and so are the bits of the result.

Where there are just two ranks, each sends its array to the other (see `sends`). This is not done where there is a stall
timeout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from distrun.runtime.backends.base import Backend, Flat
from distrun.runtime.backends.dispatch import reduction_of
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Adasum, Reduction
from distrun.runtime.operations.request import CPU
from distrun.tensor_fusion.packing import unpack

SMALL = 16 << 10
"""The most bytes that may arrive at the coordinator for one operation."""
SMALL_PAIR = 64 << 10
"""The most bytes that may travel along between two ranks, whose arrays cross each other."""
_HEADER = 8
"""Bytes before the arrays: the message's letter, three bytes of padding, and the request's cache id."""
_CACHE_ID = slice(4, 8)


class Piggyback:
    """The payloads that came along with messages, and the ones that this rank has sent."""

    def __init__(self, backend: Backend, may_offer: bool) -> None:
        """`may_offer` says that no operation is ever given up. It is the same on all ranks."""
        self._backend = backend
        self.makes_offers = may_offer and backend.size == 2
        self.has_given_up = False
        """Whether this rank has given up an operation, which the other may yet submit: it would take an offer for it.
        """
        self._largest = SMALL_PAIR if self.makes_offers else SMALL // (backend.size - 1)
        self.received: dict[int, dict[int, deque[bytes | None]]] = {}
        """Queues of payloads, by cache id and rank. They are queues since, of two ranks, the one that is done first may
        begin the next operation of the same name before the other has read the first payload. None in one stands for a
        request that the rank submitted without a payload."""
        # By cache id, until they are done: requests that this rank has sent eagerly, with the number of that message.
        self._sent: dict[int, int] = {}
        self.offers = 0
        """The number of eager messages that this rank has sent."""
        self._eligible: dict[int, bool] = {}  # by cache id
        self._reductions: dict[int, Reduction] = {}

    def is_eligible(self, handle: Handle) -> bool:
        """Whether an operation's arrays may travel with its message. This is the same each time it is submitted."""
        known = self._eligible.get(handle.cache_id)
        if known is None:
            request = handle.request
            if handle.cache_id < 0:
                return False
            self._eligible[handle.cache_id] = known = (
                request.kind == "allreduce"
                and request.device == CPU
                and not request.process_set
                and request.op is not Adasum
                and request.nbytes <= self._largest
                and not self._backend.wire_of(request)
            )
        return known

    def pack(self, letter: bytes, cache_id: int, arrays: Sequence[Flat]) -> bytes:
        """Return a message with a payload."""
        header = letter + b"\0\0\0" + cache_id.to_bytes(4, "little")
        return b"".join([header, *[array.data for array in arrays]]) if arrays else header

    def pack_own(self, letter: bytes, handle: Handle) -> bytes:
        """Return a message with this rank's payload, or none if the operation is not eligible. It counts as sent."""
        self.note_sent(handle.cache_id)
        return self.pack(letter, handle.cache_id, handle.inputs if self.is_eligible(handle) else ())

    def note_sent(self, cache_id: int) -> None:
        """Note that this rank's payload was sent."""
        self.offers += 1
        self._sent[cache_id] = self.offers

    def has_sent(self, cache_id: int) -> bool:
        """Whether this rank has sent a request eagerly that is not done."""
        return cache_id in self._sent

    def receive(self, rank: int, message: bytes) -> int:
        """Keep the payload in a message from a rank, and return the cache id of its request."""
        cache_id = cache_id_of(message)
        self.received.setdefault(cache_id, {}).setdefault(rank, deque()).append(message)
        return cache_id

    def note_without(self, rank: int, cache_ids: Sequence[int]) -> None:
        """Note that a rank has submitted these requests without payloads."""
        for cache_id in cache_ids if self.received else ():
            queue = self.received.get(cache_id, {}).get(rank)
            if queue:  # it is ahead of this rank: the payloads in the queue belong to earlier operations
                queue.append(None)

    def is_complete(self, cache_id: int) -> bool:
        """Whether every other rank has sent a payload for a request."""
        queues = self.received.get(cache_id, {})
        return len(queues) == self._backend.size - 1 and None not in [queue[0] for queue in queues.values()]

    def have_crossed(self, cache_id: int) -> bool:
        """Whether this rank's and the other's message are both sent, so that each has, or gets, all it needs."""
        return self.makes_offers and cache_id in self._sent and self.is_complete(cache_id)

    @property
    def is_unused(self) -> bool:
        """Whether no payload waits here, and none that this rank has sent is on its way."""
        return not self.received and not self._sent

    @property
    def is_offering(self) -> bool:
        """Whether the other rank has, or gets, an offer of this rank that has not crossed with one of its own."""
        return not all(map(self.is_complete, self._sent))

    def withdraw(self, last: int) -> None:
        """Note that the other rank has dropped this rank's offers up to the one with the number `last`, except those
        that have crossed with its own."""
        sent = self._sent.items()
        self._sent = {cache_id: number for cache_id, number in sent if number > last or self.is_complete(cache_id)}

    def drop_all(self) -> None:
        """Drop everything that has been received."""
        self.received.clear()

    def drop(self, cache_ids: Iterable[int]) -> None:
        """Drop the payloads of requests that are decided in the ordinary way."""
        if not self.is_unused:
            for cache_id in cache_ids:
                self.take(cache_id)

    def drop_oldest(self, ranks: Iterable[int], cache_ids: Iterable[int]) -> None:
        """Drop the oldest payload of each of these ranks for each of these requests: what it has submitted behind it
        waits for later operations."""
        for cache_id in cache_ids:
            queues = self.received.get(cache_id, {})
            for rank in queues.keys() & set(ranks):
                queues[rank].popleft()
                if not queues[rank]:
                    del queues[rank]
            if not queues:
                self.received.pop(cache_id, None)

    def forget(self, cache_id: int) -> None:
        """Note that this rank's payload has served its purpose, and the other rank's was not kept here."""
        self._sent.pop(cache_id, None)

    def take(self, cache_id: int) -> dict[int, bytes]:
        """Remove and return the payloads that have come for a request, by rank."""
        self._sent.pop(cache_id, None)
        taken = {}
        queues = self.received.get(cache_id, {})
        for rank in list(queues):
            message = queues[rank].popleft()
            if not queues[rank]:
                del queues[rank]
            if message is not None:
                taken[rank] = message
        if not queues:
            self.received.pop(cache_id, None)
        return taken

    def finish(self, own: Handle, others: Mapping[int, bytes]) -> Flat:
        """Write the result into an operation's outputs, and return it.

        It combines this rank's arrays with the other ranks' payloads, in rank order, as the backend would.
        """
        inputs, outputs, how = own.inputs, own.outputs, self.reduction(own)
        mine = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
        sources = [
            np.frombuffer(others[rank], mine.dtype, offset=_HEADER) if rank in others else mine
            for rank in range(self._backend.size)
        ]
        is_whole = len(outputs) == 1 and outputs[0].size == mine.size
        result = outputs[0] if is_whole else np.empty_like(mine)
        self._backend.combine(sources, how, result)
        if not is_whole:
            unpack(result, outputs)
        return result

    def reduction(self, handle: Handle) -> Reduction:
        """Return the arithmetic of an operation."""
        how = self._reductions.get(handle.cache_id)
        if how is None:
            how = self._reductions[handle.cache_id] = reduction_of(self._backend, handle.request)
        return how


def deliver(message: bytes, handle: Handle) -> None:
    """Write the result in a message, which brings it with the decision, into an operation's outputs."""
    unpack(np.frombuffer(message, handle.outputs[0].dtype, offset=_HEADER), handle.outputs)


def cache_id_of(message: bytes) -> int:
    """Return the cache id of the request that a message's payload belongs to."""
    return int.from_bytes(message[_CACHE_ID], "little")
