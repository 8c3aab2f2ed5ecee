"""Eager sends: what a rank sends with a submission so that no decision is needed, or the result comes with it.

Between hosts a small array travels along with the message that submits it (see `Piggyback`). And where there are just
two ranks, on one host or two, each also tells the other what it submits while it has nothing else under way: an offer.
Two offers of the same operation that cross on the way are all that is needed. Each rank has seen that both have
submitted it, and begins, and no decision is sent. An offer is void if the other rank submits the operation in another
way, for example together with others. Then the coordinator decides, as usual.

Offers keep the one order of operations. A rank makes an offer only when everything that it submitted before is done. So
no decision that the coordinator may still make can place another operation before this one on one rank and after it on
the other. And the messages of a rank arrive in order, so what it submits later arrives behind its offer. For the
same reason unnamed operations that both have offered have the same place in the order. An operation that is to be given
up is no longer offered first (see `withdrawal`).

Offers between more than two ranks are not built. Neither is executing an order that has repeated itself without asking,
which would save the way up and down the tree (1.0 ms for 10,000 ranks, as simulated). An operation that some ranks have
begun and others will not submit cannot be taken back, because its arrays hold partial sums and bytes of it are in the
streams. Today that case is either a legitimate program or a mismatch that is reported and leaves all ranks able to go
on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from distrun.runtime.negotiation import messages
from distrun.runtime.negotiation.decisions import Key
from distrun.runtime.negotiation.eager.piggyback import Piggyback, cache_id_of
from distrun.runtime.negotiation.eager.withdrawal import Withdrawal
from distrun.runtime.negotiation.intake import Intake
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.operations.handle import Handle
from distrun.runtime.transport.control.control_plane import ControlPlane
from distrun.runtime.transport.shared_memory.swap import ANSWERED, ASLEEP, NO_ROOM, SENT, Prepare, SwapFunction

_NOTHING = np.empty(0, np.float32)
_KINDS = frozenset(["allreduce", "allgather", "alltoall", "barrier", "broadcast", "reducescatter"])
"""The kinds of operations that need no state beyond their ranks."""


class Eager:
    """Sends this rank's eager messages and handles the ones that it receives."""

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        control_plane: ControlPlane,
        operations: PendingOperations,
        intake: Intake,
        piggyback: Piggyback,
    ) -> None:
        self._is_coordinator = rank == 0
        self._ranks = ranks
        self._control_plane = control_plane
        self._operations = operations
        self._intake = intake
        self._piggyback = piggyback
        self._other = 1 - rank  # meaningful only if there are two ranks
        self.withdrawal: Withdrawal | None = None
        """The coordinator's, if there are offers."""
        if piggyback.makes_offers and self._is_coordinator:
            self.withdrawal = Withdrawal(piggyback, self._ask_to_drop)
        self._direct_link = control_plane.direct_link(self._other) if piggyback.makes_offers else None
        self._can_be_offered: dict[int, bool] = {}  # by cache id
        # By cache id: the function that swaps its offers, if one can, and whether arrays travel along.
        self._swaps: dict[int, tuple[SwapFunction | None, bool]] = {}

    # What we submit ---------------------------------------------------------------------------------------------------

    def submit(self, handle: Handle) -> bool:
        """Send an eager message about `handle`, the only new operation, if it is eligible for one.

        Returns whether the coordinator learns of the operation by that message. On the coordinator this is False, as
        its own controller always has to be called.
        """
        piggyback = self._piggyback
        if not self._is_early(handle):
            return False
        if handle.request.name is None:
            self._operations.place(handle)
        if self._is_coordinator:
            if piggyback.makes_offers and not piggyback.is_complete(handle.cache_id):
                self._send(self._other, handle)
            return False
        self._send(0, handle)
        if piggyback.have_crossed(handle.cache_id):
            self._cross(handle)
        return True

    def _send(self, rank: int, handle: Handle) -> None:
        self._control_plane.send(rank, self._piggyback.pack_own(messages.PIGGYBACK, handle))

    def _is_early(self, handle: Handle) -> bool:
        """Whether an eager message about an operation is sent."""
        if self._piggyback.makes_offers and self._piggyback.has_given_up:
            return False
        return (handle.request.name is not None and self._piggyback.is_eligible(handle)) or self._is_offered(handle)

    def _is_offered(self, handle: Handle) -> bool:
        """Whether an operation is offered to the other rank, be it without its arrays."""
        return self._piggyback.makes_offers and self._is_only(handle) and self._may_be_offered(handle)

    def _may_be_offered(self, handle: Handle) -> bool:
        """Whether an operation is offered where there are offers, when nothing else is under way."""
        cache_id = handle.cache_id
        if cache_id < 0:
            return False
        if cache_id not in self._can_be_offered:
            request = handle.request
            self._can_be_offered[cache_id] = request.kind in _KINDS and not request.process_set
        return self._can_be_offered[cache_id]

    def _is_only(self, handle: Handle) -> bool:
        """Whether nothing else is under way. An unnamed operation is pending once it is placed."""
        operations, is_pending = self._operations, handle.request.name is not None
        return len(operations.pending) == is_pending and not operations.decided

    # What others submit -----------------------------------------------------------------------------------------------

    def receive(self, rank: int, message: bytes) -> int:
        """Take a rank's eager message, and return its request's cache id. A follower begins offers that crossed."""
        cache_id = cache_id_of(message)
        is_offering = not (self._piggyback.has_given_up or self._operations.has_joined)
        if not (is_offering or self._is_coordinator or self._piggyback.has_sent(cache_id)):
            return cache_id  # this rank offers it no more, or not until the join is over: it gets a decision
        self._piggyback.receive(rank, message)
        if not self._is_coordinator and self._piggyback.have_crossed(cache_id):
            self._cross(self._operations.next_of(cache_id))
        return cache_id

    def note_without(self, rank: int, cache_ids: Sequence[int]) -> None:
        """Note that a rank has submitted these requests by an ordinary message."""
        self._piggyback.note_without(rank, cache_ids)

    def refuse(self, ranks: Sequence[int], key: Key) -> None:
        """On the coordinator: drop what ranks have sent along with an operation that was given up before they came."""
        self._piggyback.drop_oldest(ranks, self._operations.cache_ids_of(key))

    def begin(self, cache_ids: list[int]) -> list[int]:
        """On the coordinator, for decided operations: begin or finish the ones that eager messages suffice for.

        Returns the cache ids of the others.
        """
        piggyback, left = self._piggyback, []
        if piggyback.is_unused:
            return cache_ids
        for cache_id in cache_ids:
            if piggyback.have_crossed(cache_id):
                self._cross(self._operations.next_of(cache_id))
            else:
                left.append(cache_id)
        if len(left) == 1 and piggyback.is_complete(left[0]):
            handle = self._operations.next_of(left[0])
            if piggyback.is_eligible(handle):
                result = self._intake.finish_piggybacked(piggyback, handle, piggyback.take(left[0]))
                self._control_plane.send_all(self._ranks, piggyback.pack(messages.RESULT, left[0], [result]))
                return []
        return left

    def _cross(self, handle: Handle) -> None:
        """Begin or finish an operation that both ranks have submitted, and that each knows the other has submitted."""
        self._proceed(handle, self._piggyback.take(handle.cache_id))

    def _proceed(self, handle: Handle, payloads: Mapping[int, bytes]) -> None:
        if self._piggyback.is_eligible(handle):
            self._intake.finish_piggybacked(self._piggyback, handle, payloads)
        else:
            self._operations.begin(handle)

    def _ask_to_drop(self) -> None:
        self._control_plane.send(self._other, messages.WITHDRAW)
        self._control_plane.alarm(self._other)

    # The shortcut -----------------------------------------------------------------------------------------------------

    @property
    def may_cross(self) -> bool:
        """Whether `cross` can be used: one operation is new, nothing else is under way, and nothing was received."""
        outbox, line, piggyback = self._operations.outbox, self._direct_link, self._piggyback
        if line is None or len(outbox) != 1 or line.inbox or piggyback.received or piggyback.has_given_up:
            return False
        return self._is_only(outbox[0]) and self._may_be_offered(outbox[0])

    def cross(self) -> bool:
        """Submit the new operation (see `may_cross`), and check a few times for the other rank's offer. Returns whether
        it came.

        If not, the operation proceeds in the ordinary way, with the same result. This is a shortcut: small operations
        that the ranks submit one by one, at the same time, cost little more than the time of the Python code, and this
        path has the least of it.
        """
        assert self._direct_link is not None
        operations, piggyback, (look, inbox, prepare) = self._operations, self._piggyback, self._direct_link
        handle = operations.outbox[0]
        handle.submitted = time.monotonic_ns()
        if handle.request.name is None:
            operations.place(handle)
        outcome, has_array = (NO_ROOM, False) if prepare is None else self._swap(prepare, handle)
        if outcome == NO_ROOM:
            self._send(self._other, handle)
        operations.outbox.popleft()
        if outcome == ANSWERED:
            (operations.finish if has_array else operations.begin)(handle)
            return True
        if outcome == SENT:
            return False
        for _ in range(self._control_plane.looks):
            look()
            if inbox:
                break
        else:
            return False
        source, message = inbox[0]
        if message[:1] != messages.PIGGYBACK or cache_id_of(message) != handle.cache_id:
            return False
        inbox.popleft()
        piggyback.forget(handle.cache_id)
        self._proceed(handle, {source: message})
        return True

    def _swap(self, prepare: Prepare, handle: Handle) -> tuple[int, bool]:
        """Send the offer by a swap, if one can do what is to be done. Returns the outcome, and whether the swap has an
        array, so that its result is that of the operation."""
        cache_id = handle.cache_id
        if cache_id not in self._swaps:
            self._swaps[cache_id] = self._new_swap(prepare, handle)
        swap, has_array = self._swaps[cache_id]
        if swap is None or self._control_plane.is_stuck:
            return NO_ROOM, has_array
        array, result = (handle.inputs[0], handle.outputs[0]) if has_array else (_NOTHING, _NOTHING)
        outcome = swap(array, result, self._control_plane.looks)
        if outcome in (SENT, ASLEEP):
            self._piggyback.note_sent(cache_id)
        return outcome, has_array

    def _new_swap(self, prepare: Prepare, handle: Handle) -> tuple[SwapFunction | None, bool]:
        piggyback = self._piggyback
        header = piggyback.pack(messages.PIGGYBACK, handle.cache_id, ())
        if not piggyback.is_eligible(handle):
            return prepare(header, _NOTHING.size, _NOTHING.dtype, 1.0), False
        array, factor = handle.inputs[0], piggyback.reduction(handle).factor
        if len(handle.inputs) > 1 or factor is None:
            return None, True
        return prepare(header, array.size, array.dtype, factor), True
