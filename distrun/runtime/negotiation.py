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
from distrun.runtime import messages
from distrun.runtime.backends.base import Flat
from distrun.runtime.callsite import main_stack
from distrun.runtime.control import Control
from distrun.runtime.controller import LONGEST_LIST, Controller, Decision, Execute, Fail, Key
from distrun.runtime.handles import Handle
from distrun.runtime.ledger import Ledger
from distrun.runtime.neighbourhood import Neighbourhood
from distrun.runtime.request import Request
from distrun.runtime.riding import Riders, number_of
from distrun.runtime.stalls import CoordinatorWatch, FollowerWatch


class Negotiation:
    """One rank's part in it."""

    def __init__(
        self,
        neighbourhood: Neighbourhood,
        control: Control,
        size: int,
        ledger: Ledger,
        controller: Controller | None,
        riders: Riders | None,
        perform: Callable[[Sequence[Handle]], None],
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
        self._hood = neighbourhood
        self._rank = neighbourhood.ranks[neighbourhood.own]
        self._ranks = range(size)
        self._ledger = ledger
        self._outbox = ledger.outbox
        self._controller = controller
        self._riders = riders
        self._perform = perform
        self._complete = complete
        self._control = control
        self.watch: CoordinatorWatch | FollowerWatch
        """Looks for operations that some rank never submits."""
        if controller is not None:
            self.watch = CoordinatorWatch(controller, neighbourhood.patience, neighbourhood.describe_rank, self._ask)
        else:
            self.watch = FollowerWatch(neighbourhood.patience, neighbourhood.describe_rank, self._remind)

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
        if self._riders is not None and len(outbox) == 1 and self._ride(self._riders, outbox[0]):
            outbox.popleft()
            return
        while outbox:
            handle = outbox.popleft()
            if handle.number >= 0:
                numbers.append(handle.number)
            else:
                self._send_numbers(numbers)
                numbers = []
                self._send_request(handle.spelled_out)
        self._send_numbers(numbers)

    def _ride(self, riders: Riders, handle: Handle) -> bool:
        """Submit an operation together with its arrays, if they may ride."""
        if not riders.takes(handle):
            return False
        if self._controller is None:
            self._control.send(0, riders.send(messages.RIDERS, handle))
            if riders.have_passed(handle.number):
                self._finish_riding(riders, handle.number)
            return True
        if riders.makes_offers and not riders.is_complete(handle.number):
            self._control.send(1, riders.send(messages.RIDERS, handle))
        return False

    def _finish_riding(self, riders: Riders, number: int) -> Flat:
        """Carry out an operation whose arrays are all here; its result."""
        handle = self._ledger.named(number)
        with np.errstate(all="ignore"):
            result = riders.combine(handle, riders.take(number))
        self._ledger.take_named(number)
        riders.deliver(handle, result)
        self._complete([handle])
        return result

    def _send_numbers(self, numbers: list[int]) -> None:
        if not numbers:
            return
        if self._controller is not None:
            self._controller.submit_numbers(self._rank, numbers, time.monotonic())
        else:
            for start in range(0, len(numbers), LONGEST_LIST):
                self._control.send(0, messages.pack_numbers(messages.NUMBERS, numbers[start : start + LONGEST_LIST]))

    def _send_request(self, spelled_out: bytes) -> None:
        if self._controller is not None:
            self._controller.submit(self._rank, *Request.decode(spelled_out), time.monotonic())
        else:
            self._control.send(0, messages.REQUEST + spelled_out)

    # Deciding ---------------------------------------------------------------------------------------------------------

    def _coordinate(self, controller: Controller) -> None:
        """Coordinator: hear the ranks, decide, tell the ranks, act on it."""
        now = time.monotonic()
        for rank, message in self._control.messages():
            letter = message[:1]
            if letter == messages.RIDERS and self._riders is not None:
                controller.submit_numbers(rank, (self._riders.board(rank, message),), now)
            elif letter == messages.NUMBERS:
                numbers = messages.unpack_numbers(message)
                if self._riders is not None:
                    self._riders.leave(rank, numbers)
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
            if self._riders is not None and isinstance(decision, Execute):
                decision = Execute(self._carry_riders(self._riders, decision.numbers))
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
                self._control.send(rank, message)

    def _carry_riders(self, riders: Riders, numbers: list[int]) -> list[int]:
        """Coordinator: carry out what needs nobody else any more; the numbers of what is left."""
        left = []
        for number in numbers:
            if riders.have_passed(number):
                self._finish_riding(riders, number)
            else:
                left.append(number)
        if len(left) == 1 and riders.is_complete(left[0]):
            result = self._finish_riding(riders, left[0])
            self._tell(self._ranks, riders.pack(messages.RESULT, left[0], [result]))
            return []
        return left

    # Acting -----------------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Others: act on what the coordinator has decided."""
        for _, message in self._control.messages():
            self.watch.heard()
            if message[:1] == messages.RIDERS and self._riders is not None:
                number = self._riders.board(0, message)
                if self._riders.have_passed(number):
                    self._finish_riding(self._riders, number)
            else:
                self._act(message)

    def _act(self, message: bytes) -> None:
        letter = message[:1]
        if letter == messages.EXECUTE:
            handles = self._ledger.take(message)
            if self._riders is not None:
                for handle in handles:
                    self._riders.take(handle.number)  # it has not served
            try:
                for places in self._ledger.plan(message):
                    self._perform([handles[place] for place in places])
            except BaseException:
                self._ledger.put_back([handle for handle in handles if not handle.done])  # for `_abort` to find
                raise
        elif letter == messages.RESULT:
            number = number_of(message)
            handle = self._ledger.take_named(number)
            if self._riders is not None:
                self._riders.take(number)
            Riders.deliver(handle, Riders.result_in(message, handle))
            self._complete([handle])
        elif letter == messages.DEFINE:
            define = messages.unpack_define(message)
            self._perform([self._ledger.take_new(define.request, define.number)])
        elif letter == messages.FAIL:
            fail = messages.unpack_fail(message)
            self._fail(fail.key, StallError(fail.text) if fail.is_stall else MismatchError(fail.text))
        else:
            self._control.send(0, messages.ANSWER + main_stack().encode())

    def _fail(self, key: Key, error: CollectiveError) -> None:
        handle = self._ledger.take_failed(key)
        if self._riders is not None:
            for number in self._ledger.numbers_of(key):  # the ranks may have sent arrays along for different requests
                self._riders.take(number)
        if handle is not None:
            handle.error = error
            self._complete([handle])

    # Stalls -----------------------------------------------------------------------------------------------------------

    def _ask(self, rank: int) -> None:
        """Coordinator: ask a rank where its main thread is."""
        if rank == self._rank:
            self.watch.answered(rank, main_stack(), time.monotonic())
            return
        self._control.send(rank, messages.QUESTION)
        self._control.alarm(rank)

    def _remind(self, waited: float) -> None:
        """Others: wake the coordinator's engine, whose rank may be busy with other things, to look for stalls."""
        self._control.send(0, messages.pack_reminder(waited))
        self._control.alarm(0)
