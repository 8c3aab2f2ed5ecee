"""The negotiation: what a rank tells the coordinator and the other way round, and what follows from it.

Every rank tells rank 0, the coordinator, what it has submitted, in order; once spelled out, from then on by number. There a
`Controller` decides what is ready, and what is wrong; its decisions go to all ranks, which act on them in the order in which
they were made. Small operations between hosts may come along with the messages (see `Riders`).

What is here is called by the driver of the engine, one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from distrun.errors import CollectiveError, MismatchError, StallError
from distrun.runtime.backends.base import Flat
from distrun.runtime.negotiation import messages
from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.negotiation.decisions import LONGEST_LIST, Decision, Execute, Fail, Key
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.negotiation.piggyback import Piggyback, number_of
from distrun.runtime.negotiation.stalls import CoordinatorWatch, FollowerWatch
from distrun.runtime.operations.callsite import main_stack
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request
from distrun.runtime.transport.control_plane import ControlPlane
from distrun.runtime.transport.local_group import LocalGroup


class Negotiator:
    """One rank's part in it."""

    def __init__(
        self,
        local_group: LocalGroup,
        control: ControlPlane,
        size: int,
        pending_operations: PendingOperations,
        controller: Controller | None,
        piggyback: Piggyback | None,
        execute: Callable[[Sequence[Handle]], None],
        complete: Callable[[Iterable[Handle]], None],
    ) -> None:
        """
        Args:
            control: what the messages go through.
            size: the number of ranks of the job.
            ledger: the operations that are under way here.
            controller: on the coordinator, and on no other rank.
            riders: where there are several hosts.
            perform: carries out operations that are ready, all of one kind and fused.
            complete: tells those who wait that operations are done.
        """
        self._local_group = local_group
        self._rank = local_group.ranks[local_group.own]
        self._ranks = range(size)
        self._pending_operations = pending_operations
        self._outbox = pending_operations.outbox
        self._controller = controller
        self._piggyback = piggyback
        self._execute = execute
        self._complete = complete
        self._control_plane = control
        self.watch: CoordinatorWatch | FollowerWatch
        """Looks for operations that some rank never submits."""
        if controller is not None:
            self.watch = CoordinatorWatch(controller, local_group.timeouts, local_group.describe_rank, self._ask)
        else:
            self.watch = FollowerWatch(local_group.timeouts, local_group.describe_rank, self._remind)

    def progress(self) -> None:
        """Tell what is new here, and act on what has been decided."""
        if self._outbox:
            self._hand_in()
        if self._controller is not None:
            self._coordinate(self._controller)
        else:
            self._follow()

    # Telling ----------------------------------------------------------------------------------------------------------

    def _hand_in(self) -> None:
        """Tell the coordinator (perhaps ourselves) about newly submitted operations, in order."""
        numbers: list[int] = []
        outbox = self._outbox
        if self._piggyback is not None and len(outbox) == 1 and self._ride(self._piggyback, outbox[0]):
            outbox.popleft()
            return
        while outbox:
            handle = outbox.popleft()
            if handle.number >= 0:
                numbers.append(handle.number)
            else:
                self._send_numbers(numbers)
                numbers = []
                self._send_request(handle.full_request)
        self._send_numbers(numbers)

    def _ride(self, piggyback: Piggyback, handle: Handle) -> bool:
        """Submit an operation together with its arrays, if they may ride."""
        if not piggyback.takes(handle):
            return False
        if self._controller is None:
            self._control_plane.send(0, piggyback.send(messages.PIGGYBACK, handle))
            if piggyback.have_passed(handle.number):
                self._finish_riding(piggyback, handle.number)
            return True
        if piggyback.makes_offers and not piggyback.is_complete(handle.number):
            self._control_plane.send(1, piggyback.send(messages.PIGGYBACK, handle))
        return False

    def _finish_riding(self, piggyback: Piggyback, number: int) -> Flat:
        """Carry out an operation whose arrays are all here; its result."""
        handle = self._pending_operations.named(number)
        with np.errstate(all="ignore"):
            result = piggyback.combine(handle, piggyback.take(number))
        self._pending_operations.take_named(number)
        piggyback.deliver(handle, result)
        self._complete([handle])
        return result

    def _send_numbers(self, numbers: list[int]) -> None:
        if not numbers:
            return
        if self._controller is not None:
            self._controller.submit_numbers(self._rank, numbers, time.monotonic())
        else:
            for start in range(0, len(numbers), LONGEST_LIST):
                self._control_plane.send(
                    0, messages.pack_numbers(messages.NUMBERS, numbers[start : start + LONGEST_LIST])
                )

    def _send_request(self, full_request: bytes) -> None:
        if self._controller is not None:
            self._controller.submit(self._rank, *Request.decode(full_request), time.monotonic())
        else:
            self._control_plane.send(0, messages.REQUEST + full_request)

    # Deciding ---------------------------------------------------------------------------------------------------------

    def _coordinate(self, controller: Controller) -> None:
        """Coordinator: hear the ranks, decide, tell the ranks, act on it."""
        now = time.monotonic()
        for rank, message in self._control_plane.messages():
            letter = message[:1]
            if letter == messages.PIGGYBACK and self._piggyback is not None:
                controller.submit_numbers(rank, (self._piggyback.board(rank, message),), now)
            elif letter == messages.NUMBERS:
                numbers = messages.unpack_numbers(message)
                if self._piggyback is not None:
                    self._piggyback.leave(rank, numbers)
                controller.submit_numbers(rank, numbers, now)
            elif letter == messages.REQUEST:
                controller.submit(rank, *Request.decode(message[1:]), now)
            elif letter == messages.REMINDER:
                self.watch.reminded(rank, messages.unpack_reminder(message), now)
            else:
                self.watch.answered(rank, message[1:].decode(errors="replace"), now)
        self._announce(controller.decisions())

    def _announce(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if self._piggyback is not None and isinstance(decision, Execute):
                decision = Execute(self._carry_riders(self._piggyback, decision.numbers))
                if not decision.numbers:
                    continue
            ranks = decision.ranks if isinstance(decision, Fail) else self._ranks
            message = messages.pack_decision(decision)
            self._tell(ranks, message)
            if self._rank in ranks:
                self._act(message)

    def _tell(self, ranks: Iterable[int], message: bytes) -> None:
        for rank in ranks:
            if rank != self._rank:
                self._control_plane.send(rank, message)

    def _carry_riders(self, piggyback: Piggyback, numbers: list[int]) -> list[int]:
        """Coordinator: carry out what needs nobody else any more; the numbers of what is left."""
        left = []
        for number in numbers:
            if piggyback.have_passed(number):
                self._finish_riding(piggyback, number)
            else:
                left.append(number)
        if len(left) == 1 and piggyback.is_complete(left[0]):
            result = self._finish_riding(piggyback, left[0])
            self._tell(self._ranks, piggyback.pack(messages.RESULT, left[0], [result]))
            return []
        return left

    # Acting -----------------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Others: act on what the coordinator has decided."""
        for _, message in self._control_plane.messages():
            self.watch.heard()
            if message[:1] == messages.PIGGYBACK and self._piggyback is not None:
                number = self._piggyback.board(0, message)
                if self._piggyback.have_passed(number):
                    self._finish_riding(self._piggyback, number)
            else:
                self._act(message)

    def _act(self, message: bytes) -> None:
        letter = message[:1]
        if letter == messages.EXECUTE:
            handles = self._pending_operations.take(message)
            if self._piggyback is not None:
                for handle in handles:
                    self._piggyback.take(handle.number)  # it has not served
            try:
                for places in self._pending_operations.plan(message):
                    self._execute([handles[place] for place in places])
            except BaseException:
                self._pending_operations.put_back(
                    [handle for handle in handles if not handle.done]
                )  # for `_abort` to find
                raise
        elif letter == messages.RESULT:
            number = number_of(message)
            handle = self._pending_operations.take_named(number)
            if self._piggyback is not None:
                self._piggyback.take(number)
            Piggyback.deliver(handle, Piggyback.result_in(message, handle))
            self._complete([handle])
        elif letter == messages.DEFINE:
            define = messages.unpack_define(message)
            self._execute([self._pending_operations.take_new(define.request, define.number)])
        elif letter == messages.FAIL:
            fail = messages.unpack_fail(message)
            self._fail(fail.key, StallError(fail.text) if fail.is_stall else MismatchError(fail.text))
        else:
            self._control_plane.send(0, messages.ANSWER + main_stack().encode())

    def _fail(self, key: Key, error: CollectiveError) -> None:
        handle = self._pending_operations.take_failed(key)
        if self._piggyback is not None:
            for number in self._pending_operations.numbers_of(
                key
            ):  # the ranks may have sent arrays along for different requests
                self._piggyback.take(number)
        if handle is not None:
            handle.error = error
            self._complete([handle])

    # Stalls -----------------------------------------------------------------------------------------------------------

    def _ask(self, rank: int) -> None:
        """Coordinator: ask a rank where its main thread is."""
        if rank == self._rank:
            self.watch.answered(rank, main_stack(), time.monotonic())
            return
        self._control_plane.send(rank, messages.QUESTION)
        self._control_plane.alarm(rank)

    def _remind(self, waited: float) -> None:
        """Others: wake the coordinator's engine, whose rank may be busy with other things, to look for stalls."""
        self._control_plane.send(0, messages.pack_reminder(waited))
        self._control_plane.alarm(0)
