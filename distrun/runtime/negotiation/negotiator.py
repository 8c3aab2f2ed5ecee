"""The coordinator protocol: submissions go up to rank 0, decisions come down to all ranks, in one order.

Every rank tells rank 0, the coordinator, what it has submitted, in order. A request is sent in full once, and later by
its cache id. On rank 0 a `Controller` decides what is ready, and what is wrong. The decisions go to all ranks, which
make batches of them and execute these in the order of the decisions. Small operations between hosts, or
between two ranks, may travel with the messages (see `Piggyback`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from distrun.errors import JobAbortedError
from distrun.runtime.negotiation import messages
from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.negotiation.decisions import LONGEST_LIST, Decision, Define, Execute, Fail, Key
from distrun.runtime.negotiation.eager.piggyback import Piggyback
from distrun.runtime.negotiation.eager.sends import Eager
from distrun.runtime.negotiation.inquiries import Inquiries
from distrun.runtime.negotiation.intake import Intake
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.negotiation.questions import Questions
from distrun.runtime.negotiation.stalls import CoordinatorStallMonitor, FollowerStallMonitor
from distrun.runtime.negotiation.whereabouts import whereabouts
from distrun.runtime.operations import waking_clock
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import FORM_PROCESS_SET, Request
from distrun.runtime.operations.timeouts import Timeouts
from distrun.runtime.transport.control.control_plane import ControlPlane
from distrun.runtime.transport.network_causes import NetworkCauses

RETRY = 0.001
"""Seconds between two attempts to write into a full mailbox."""
PUSH_INTERVAL = 0.02
"""Seconds between two attempts to send the rest of a message over a connection."""


class Negotiator:
    """One rank's part of the protocol, for the thread that has the turn to make progress."""

    def __init__(
        self,
        rank: int,
        size: int,
        control_plane: ControlPlane,
        operations: PendingOperations,
        controller: Controller | None,
        piggyback: Piggyback | None,
        timeouts: Timeouts,
        describe_rank: Callable[[int], str],
        process_sets: Mapping[int, Sequence[int]],
        clock: Callable[[], float] = waking_clock.now,
        amend: Callable[[Iterable[Decision], float], Iterable[Decision]] | None = None,
    ) -> None:
        """Only this object uses `control_plane`. `controller` is given on the coordinator only, and there `amend` too
        if the fusion threshold is tuned: it inserts such decisions, given the time. `piggyback` is given where messages
        may bring arrays. `process_sets`, a view that stays current, has the ranks of each set in rising order."""
        self.rank = rank
        self.is_follower = controller is None
        self.is_across_hosts = control_plane.is_across_hosts
        self.speaks_for_host = control_plane.speaks_for_host
        self._ranks = range(size)
        self._control_plane = control_plane
        self._operations = operations
        self._controller = controller
        self._process_sets = process_sets
        self._clock = clock
        self._amend = amend
        self._pending: deque[Decision | bytes] = deque()
        """The coordinator's decisions that wait for room in a mailbox, in order. The first may be a message instead: it
        has been sent, except to the mailboxes that were full, and this rank has not taken it in yet."""
        self.inquiries = Inquiries()
        causes = NetworkCauses(control_plane, describe_rank) if control_plane.is_across_hosts else None
        self._intake = Intake(control_plane, operations, self.inquiries, piggyback, causes)
        self.may_cross = piggyback is not None and piggyback.makes_offers
        """Whether `cross` may save a decision."""
        self._eager: Eager | None = None
        if piggyback is not None:
            self._eager = Eager(rank, self._ranks, control_plane, operations, self._intake, piggyback)
        self._stall_monitor: CoordinatorStallMonitor | FollowerStallMonitor
        self._questions: Questions | None = None
        if controller is not None:
            monitor = CoordinatorStallMonitor(controller, timeouts, describe_rank, self._ask, causes)
            self._stall_monitor = monitor
            withdrawal = None if self._eager is None else self._eager.withdrawal
            self._questions = Questions(rank, control_plane, monitor, self.inquiries, withdrawal)
        else:
            self._stall_monitor = FollowerStallMonitor(timeouts, describe_rank, self._remind, causes)

    def progress(self) -> None:
        """Submit what is new here, and take in what has been decided: see `PendingOperations.decided`, `.finished`."""
        if self._operations.outbox:
            self._tell_submitted()
        if self._controller is not None:
            self._coordinate(self._controller)
        else:
            self._follow()
        if self.inquiries.new:
            self.inquiries.send(self._inquire)
            if self._controller is not None:
                self._coordinate(self._controller)  # sends the decisions to give operations up

    def cross(self) -> bool:
        """Submit the only operation under way, if it is new, and see whether the only other rank submits it, too.

        Returns whether it did, so that no decision is needed. See `Eager.cross`.
        """
        eager = self._eager
        if eager is None or not eager.may_cross or self._pending:
            return False
        cache_id = self._operations.outbox[0].cache_id
        has_crossed = eager.cross()
        if self._controller is not None:
            if has_crossed:
                self._controller.count_crossed(cache_id)
            else:
                self._controller.submit_ids(self.rank, [cache_id], self._clock())
        return has_crossed

    def close(self) -> None:
        """Break reference cycles, so that shared memory is freed at once, not at the next garbage collection."""
        del self._stall_monitor, self._questions

    # Waiting ----------------------------------------------------------------------------------------------------------

    def has_news(self) -> bool:
        """Whether `progress` or `check_hosts` has something to do."""
        if self._operations.outbox or self._control_plane.waiting() or self.inquiries.new:
            return True
        return self.is_across_hosts and self._control_plane.trouble(bool(self._operations.pending)) is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing has to be sent or checked, apart from the operations under way."""
        is_asking = self._questions is not None and self._questions.is_waiting(self._clock())
        return not (self._stall_monitor.is_busy or self.is_sending or is_asking)

    @property
    def is_sending(self) -> bool:
        """Whether some messages are not sent completely."""
        control_plane = self._control_plane
        return control_plane.is_stuck or bool(self._pending) or (self.is_across_hosts and control_plane.is_sending)

    def next_look(self, now: float) -> float:
        """The monotonic time when `progress` has to be called again though nothing has come."""
        until = self._stall_monitor.next_look(now)
        if self._questions is not None:
            until = self._questions.next_look(until, now)
        if not self.is_sending:
            return until
        if self._control_plane.is_stuck:
            self._control_plane.push()
            return min(until, now + RETRY)
        return min(until, now + (RETRY if self._pending else PUSH_INTERVAL))

    def hear_alarms(self) -> bool:
        """Whether another host has sent an alarm since the last call. The progress thread calls it in any state."""
        return self.is_across_hosts and self._control_plane.hear_alarms()

    def look_after_host(self) -> None:
        """Report to the other hosts which ranks of this host are gone, if this rank speaks for the host.

        Raises:
            JobAbortedError: a rank has failed or ended.
        """
        if (trouble := self._control_plane.report_lost_ranks()) is not None:
            raise JobAbortedError(f"{self._operations.describe()}: {trouble}" if self._operations.pending else trouble)

    def check_hosts(self) -> None:
        """Check, where there are several hosts, that the operations under way can still be decided.

        Raises:
            JobAbortedError: a rank of another host has failed, or has left while an operation here is undecided.
        """
        if self.speaks_for_host:
            self._control_plane.tell_departure()
        is_undecided = bool(self._operations.pending)
        trouble = self._control_plane.trouble(is_undecided)
        if trouble is not None:
            raise JobAbortedError(f"{self._operations.describe()}: {trouble}" if is_undecided else trouble)

    def check_stalls(self) -> None:
        """Report or give up operations that have waited too long.

        Raises:
            StallError: the coordinator does not answer.
        """
        if self.is_follower and self._operations.has_joined_only:
            self._stall_monitor.heard()  # a rank that has only joined waits for the others without a time limit
            return
        monitor = self._stall_monitor if self._questions is None else self._questions
        monitor.look(self._clock())

    # Submissions up ---------------------------------------------------------------------------------------------------

    def _tell_submitted(self) -> None:
        """Submit new operations to the coordinator, which may be this rank, in order."""
        outbox = self._operations.outbox
        now = time.monotonic_ns()
        if self._eager is not None and len(outbox) == 1 and not self._pending:
            handle = outbox[0]
            handle.submitted = now
            if self._eager.submit(handle):
                outbox.popleft()
                return
        cache_ids: list[int] = []
        is_busy_elsewhere = False
        while outbox:
            handle = outbox[0]
            handle.submitted = now
            request = handle.request
            if request.name is None and handle.key == Handle.key:  # not placed for an eager message
                self._operations.place(handle)
            if request.process_set or request.kind == FORM_PROCESS_SET:
                is_busy_elsewhere |= not self._is_of_coordinator(request)
            outbox.popleft()  # only now: at an interrupt, the operation is in one of the queues
            if handle.cache_id >= 0:
                cache_ids.append(handle.cache_id)
            else:
                self._submit_ids(cache_ids)
                cache_ids = []
                if self._controller is not None:
                    self._controller.submit(self.rank, *Request.decode(handle.full_request), self._clock())
                else:
                    self._control_plane.send(0, messages.FULL_REQUEST + handle.full_request)
        self._submit_ids(cache_ids)
        if is_busy_elsewhere:
            # Rank 0 may be computing, and takes part in no operation that would make it look for this submission.
            self._control_plane.alarm(0)

    def _is_of_coordinator(self, request: Request) -> bool:
        """Whether the coordinator takes part in an operation, and so will look for this submission anyway."""
        members = request.shapes[0] if request.kind == FORM_PROCESS_SET else self._process_sets[request.process_set]
        return members[0] == 0

    def _submit_ids(self, cache_ids: list[int]) -> None:
        if not cache_ids:
            return
        if self._controller is not None:
            self._controller.submit_ids(self.rank, cache_ids, self._clock())
            return
        for start in range(0, len(cache_ids), LONGEST_LIST):
            part = cache_ids[start : start + LONGEST_LIST]
            self._control_plane.send(0, messages.pack_ids(messages.CACHE_IDS, part))

    # Decisions, on the coordinator ------------------------------------------------------------------------------------

    def _coordinate(self, controller: Controller) -> None:
        """Take in the ranks' messages, decide, and send the decisions to the ranks."""
        now = self._clock()
        for source, message in self._control_plane.messages():
            letter = message[:1]
            if letter == messages.PIGGYBACK and self._eager is not None:
                controller.submit_ids(source, [self._eager.receive(source, message)], now)
            elif letter == messages.CACHE_IDS:
                cache_ids = messages.unpack_ids(message)
                if self._eager is not None:
                    self._eager.note_without(source, cache_ids)
                controller.submit_ids(source, cache_ids, now)
            elif letter == messages.FULL_REQUEST:
                controller.submit(source, *messages.decoded(message[1:]), now)
            elif letter == messages.SITE:
                controller.site_told(source, *messages.unpack_key(message))
            elif letter == messages.WITHDRAWN and self._questions is not None:
                self._questions.offers_are_withdrawn()
            elif letter in messages.QUESTIONS and self._questions is not None:
                self._questions.ask(source, message)
            else:
                self._stall_monitor.answered(source, message[1:].decode(errors="replace"), now)
        if self._questions is not None and self._questions.unanswered:
            self._questions.answer(now)
        if self._pending:
            self._carry_down_pending()
        if controller.questions:
            self._ask_sites(controller)
        decisions = controller.decisions()
        for decision in decisions if self._amend is None else self._amend(decisions, now):
            if self._pending or self._control_plane.is_stuck:
                self._pending.append(decision)
            else:
                self._carry_down(decision)

    def _ask_sites(self, controller: Controller) -> None:
        """Ask ranks for the call sites of an operation that the ranks disagree about."""
        for rank, key in controller.questions:
            if rank == self.rank:
                controller.site_told(rank, key, self._operations.site_of(key))
            else:
                self._control_plane.send(rank, messages.pack_key(messages.SITE_QUESTION, key))
                self._control_plane.alarm(rank)
        controller.questions.clear()

    def _carry_down_pending(self) -> None:
        """Continue with the decisions that found no room in a mailbox.

        Each decision is executed here before the next one has to fit. A rank that waits for this rank inside an
        operation does not empty its mailbox, so this rank must never wait for room there while that rank knows of a
        decision that this rank has not executed: both would wait for ever.
        """
        pending, control_plane = self._pending, self._control_plane
        control_plane.push()
        while pending and not control_plane.is_stuck:
            first = pending.popleft()
            if isinstance(first, bytes):
                self._intake.take_in(first)
            else:
                self._carry_down(first)

    def _carry_down(self, decision: Decision) -> None:
        """Send a decision to the ranks that it concerns, this one included."""
        if self._eager is not None and isinstance(decision, Execute) and not decision.taking_part:
            left = self._eager.begin(decision.cache_ids)
            if not left:
                return
            decision = Execute(left, decision.process_set, decision.taking_part)
        ranks = self._ranks_of(decision)
        if self._eager is not None and isinstance(decision, Fail) and self.rank not in ranks:
            self._eager.refuse(ranks, decision.key)
        message = messages.pack_decision(decision)
        self._control_plane.send_all(ranks, message)
        if isinstance(decision, Define) and decision.request.kind == FORM_PROCESS_SET:
            for rank in ranks:
                if rank != self.rank:
                    self._control_plane.alarm(rank)  # it may have submitted nothing, and be computing
        if self.rank in ranks:
            if self._control_plane.is_stuck:
                # What is taken in is executed next, and waits for the other ranks there. All must have it by then.
                self._pending.appendleft(message)
            else:
                self._intake.take_in(message)

    def _ranks_of(self, decision: Decision) -> Sequence[int]:
        """Return the ranks that a decision concerns."""
        if type(decision) is Execute and not decision.process_set:  # the usual case
            return self._ranks
        if isinstance(decision, Fail):
            return decision.ranks
        process_set = decision.request.process_set if isinstance(decision, Define) else decision.process_set
        if not process_set or self._controller is None:
            return self._ranks
        return self._controller.members(process_set)

    # Decisions, on the followers --------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Take in the messages from the coordinator."""
        for _, message in self._control_plane.messages():
            self._stall_monitor.heard()
            if message[:1] == messages.PIGGYBACK and self._eager is not None:
                self._eager.receive(0, message)
            else:
                self._intake.take_in(message)

    # Stalls -----------------------------------------------------------------------------------------------------------

    def _ask(self, rank: int) -> None:
        """On the coordinator: ask a rank where its main thread is."""
        if rank == self.rank:
            self._stall_monitor.answered(rank, whereabouts(), self._clock())
            return
        self._control_plane.send(rank, messages.QUESTION)
        self._control_plane.alarm(rank)

    def _inquire(self, key: Key, why: str) -> None:
        """Ask the coordinator, which may be this rank, who has not submitted an operation. Given `why`, give it up."""
        question = messages.pack_key(messages.GIVE_UP if why else messages.INQUIRY, key, why)
        if self._questions is not None:
            self._questions.ask(self.rank, question)
            self._questions.answer(self._clock())
        else:
            self._control_plane.send(0, question)
            self._control_plane.alarm(0)

    def _remind(self, waited: float) -> None:
        """On a follower: wake the coordinator's engine, as its rank may be busy elsewhere, to look for stalls."""
        self._control_plane.send(0, messages.pack_reminder(waited))
        self._control_plane.alarm(0)
