"""Stalls: operations that some ranks wait for and others do not submit.

Only the coordinator can see which ranks are missing, but it may itself be computing, without a thread that waits. So a
rank that has heard nothing for the warning time wakes the coordinator's progress thread, which then checks, asks the
missing ranks where their main thread is, and reports the answers. After the stall timeout it gives the operation up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from distrun.errors import StallError
from distrun.host.ranks import list_ranks
from distrun.runtime.negotiation.controller import Controller, Stall
from distrun.runtime.negotiation.decisions import Key
from distrun.runtime.negotiation.inquiries import WHO
from distrun.runtime.negotiation.whereabouts import describe_stack
from distrun.runtime.operations.timeouts import Timeouts
from distrun.runtime.transport.network_causes import NetworkCauses

UNEQUAL_STEPS = (
    "where ranks have unequal numbers of steps, give each as many (distrun.data divides data evenly), or call "
    "distrun.join() on each at the end of its data"
)
"""The remedy for the most common mistake."""

log = logging.getLogger("distrun")

NEVER = float("inf")
ANSWER_TIME = 2.0
"""Seconds that a missing rank has to answer with its stack."""
COORDINATOR_GRACE = 5.0
"""Seconds beyond the stall timeout after which a rank gives up on a coordinator that does not decide."""


def warning_time(timeouts: Timeouts) -> float:
    """The seconds after which a stall is reported: before it is given up, so that the error can say more."""
    times = [time for time in (timeouts.warning, timeouts.timeout / 2) if time > 0]
    return min(times, default=NEVER)


@dataclass
class _Inquiry:
    """Stalls about to be reported, and what the missing ranks said about themselves."""

    stalls: list[Stall]
    deadline: float
    asked: set[int]
    answers: dict[int, str] = field(default_factory=dict)


class CoordinatorStallMonitor:
    """The coordinator's side: finds stalls, asks the missing ranks, reports, and gives up."""

    def __init__(
        self,
        controller: Controller,
        timeouts: Timeouts,
        describe: Callable[[int], str],
        ask: Callable[[int], None],
        causes: NetworkCauses | None = None,
    ) -> None:
        """`ask` makes a rank call `answered` with its stack, now or later. `causes` are given where there are several
        hosts."""
        self._causes = causes
        self._controller = controller
        self._warning = warning_time(timeouts)
        self._timeout = timeouts.timeout or NEVER
        self._describe = describe
        self._ask = ask
        self._inquiry: _Inquiry | None = None
        self._next_report = 0.0
        self._is_stalled = False

    @property
    def is_busy(self) -> bool:
        """Whether `look` must be called again though nothing is under way: answers are missing, or a stall lasts."""
        return self._inquiry is not None or self._is_stalled

    def reminded(self, rank: int, waited: float, now: float) -> None:
        """Handle a message that `rank` has waited for `waited` seconds. Its operations may have been read only now."""
        self._controller.backdate(rank, now - waited)
        if self._causes is not None and self._controller.oldest is None and (trouble := self._causes.of(rank)):
            log.warning("%s has waited for %.1f s, and nobody else waits: %s", self._describe(rank), waited, trouble)

    def heard(self) -> None:
        """Do nothing: the controller knows since when each operation has waited."""

    def next_look(self, now: float) -> float:
        """The monotonic time when `look` should be called again."""
        if self._inquiry is not None:
            return self._inquiry.deadline
        oldest = self._controller.oldest
        if oldest is None:
            return NEVER
        return min(max(oldest + self._warning, self._next_report), oldest + self._timeout)

    def is_due(self, now: float) -> bool:
        """Whether `look` would find something to report or to give up."""
        oldest = self._controller.oldest
        return self._inquiry is None and oldest is not None and now >= self.next_look(now)

    def look(self, now: float) -> None:
        """Report or give up operations that have waited too long."""
        if self._inquiry is not None:
            if now < self._inquiry.deadline and len(self._inquiry.answers) < len(self._inquiry.asked):
                return
            self._report(self._inquiry)
            self._inquiry = None
        oldest = self._controller.oldest
        self._is_stalled = oldest is not None and now >= oldest + self._warning
        if oldest is None:
            return
        if now >= oldest + self._timeout:
            stalls = self._controller.stalls(now, self._timeout)
            causes = describe_deadlock(stalls)
            if self._causes is not None:
                causes += filter(
                    None, map(self._causes.of, sorted({rank for stall in stalls for rank in stall.missing}))
                )
            why = {stall.title: "; ".join([self._sentence(stall), *causes]) for stall in stalls}
            self._controller.give_up(now, self._timeout, why)
        elif now >= max(oldest + self._warning, self._next_report):
            self._next_report = now + (now - oldest)  # the time between reports doubles
            self._open(self._controller.stalls(now, self._warning), now)

    def _open(self, stalls: list[Stall], now: float) -> None:
        missing = {rank for stall in stalls for rank in stall.missing}
        before_giving_up = self._timeout - stalls[0].waited
        self._inquiry = _Inquiry(stalls, now + min(ANSWER_TIME, before_giving_up), missing)
        for rank in sorted(missing):
            self._ask(rank)

    def answered(self, rank: int, stack: str, now: float) -> None:
        """Handle the answer of a rank that was asked where its main thread is."""
        if self._inquiry is not None:
            self._inquiry.answers[rank] = stack
            self.look(now)

    def who_is_missing(self, key: Key, now: float) -> str:
        """Return which ranks have submitted an operation and which have not. Empty if none is missing."""
        stall = self._waiting(key, now)
        return "" if stall is None else self._who(stall)

    def give_up(self, key: Key, why: str, now: float) -> str:
        """Give up an operation if ranks are missing, see `Inquiry`. Returns `who_is_missing` as it was before."""
        stall = self._waiting(key, now)
        if stall is None:
            return ""
        who = self._who(stall)
        self._controller.give_up_one(key, f"{stall.title} {why.replace(WHO, who)}")
        return who

    def _waiting(self, key: Key, now: float) -> Stall | None:
        """Return the stall of an operation that waits for ranks, or None."""
        stalls = self._controller.stalls(now, 0.0)
        return next((stall for stall in stalls if stall.key == key and stall.missing), None)

    def _who(self, stall: Stall) -> str:
        missing = ", ".join(self._describe(rank) for rank in stall.missing)
        return f"submitted by {list_ranks(stall.present)}{_at(stall)}, not by {missing}"

    def _sentence(self, stall: Stall) -> str:
        return f"{stall.title} has waited for {stall.waited:.1f} s: {self._who(stall)}"

    def _report(self, inquiry: _Inquiry) -> None:
        lines = [self._sentence(stall) for stall in inquiry.stalls[:10]]
        if len(inquiry.stalls) > 10:
            lines.append(f"... and {len(inquiry.stalls) - 10} more operations")
        lines += describe_deadlock(inquiry.stalls)
        for rank in sorted(inquiry.asked):
            stack = inquiry.answers.get(rank)
            if stack is None:
                lines.append(f"{self._describe(rank)} was asked where it is, and did not answer")
            else:
                lines.append(describe_stack(rank, stack))
        if self._causes is not None:
            lines += self._causes.among(inquiry.asked, inquiry.answers)
        log.warning("%s", "\n".join(lines))


def describe_deadlock(stalls: Sequence[Stall]) -> list[str]:
    """Return a list of one sentence about ranks that wait for each other in different operations, or of none."""
    for one in stalls:
        for other in stalls:
            ours, theirs = _common(one.present, other.missing), _common(one.missing, other.present)
            if ours and theirs:
                return [
                    f"{_waits(ours)} in {one.title}{_at(one)} for {list_ranks(theirs)}, which {_waits(theirs, '')} in "
                    f"{other.title}{_at(other)} for {list_ranks(ours)}: neither will come; {UNEQUAL_STEPS}"
                ]
    return []


def _waits(ranks: Sequence[int], who: str | None = None) -> str:
    who = list_ranks(ranks) + " " if who is None else who
    return f"{who}{'waits' if len(ranks) == 1 else 'wait'}"


def _common(some: Sequence[int], others: Sequence[int]) -> list[int]:
    return sorted(set(some) & set(others))


def _at(stall: Stall) -> str:
    return f" (at {stall.site})" if stall.site else ""


class FollowerStallMonitor:
    """The other ranks' side: reminds the coordinator, and gives up if it never answers."""

    def __init__(
        self,
        timeouts: Timeouts,
        describe: Callable[[int], str],
        remind: Callable[[float], None],
        causes: NetworkCauses | None = None,
    ) -> None:
        """`remind` wakes the coordinator, and sends it the seconds that this rank has waited. `causes` are given where
        there are several hosts."""
        self._causes = causes
        self._warning = warning_time(timeouts)
        self._timeout = timeouts.timeout or NEVER
        self._describe = describe
        self._remind = remind
        self._quiet_since: float | None = None
        self._reminders = 0

    is_busy = False

    def heard(self) -> None:
        """The coordinator has decided something, so the wait for its next decision begins again."""
        self._quiet_since = None

    def _times(self, since: float) -> list[float]:
        return [
            since + self._warning * 2**self._reminders,
            since + self._timeout + 0.05,
            since + self._timeout + COORDINATOR_GRACE,
        ]

    def next_look(self, now: float) -> float:
        """The monotonic time when `look` should be called again."""
        if self._quiet_since is None:
            self._quiet_since, self._reminders = now, 0
        return min((time for time in self._times(self._quiet_since) if time > now), default=now)

    def look(self, now: float) -> None:
        """Remind the coordinator if it is time for that.

        Raises:
            StallError: the coordinator has not decided anything for the stall timeout and its grace.
        """
        if self._quiet_since is None:
            return
        remind, last_reminder, give_up = self._times(self._quiet_since)
        if now >= give_up:
            raise StallError(
                f"{self._describe(0)}, which coordinates the job, has not answered for {now - self._quiet_since:.0f} s"
            )
        if now >= min(remind, last_reminder):
            self._reminders += 1
            if self._causes is not None and (trouble := self._causes.to_coordinator()):
                log.warning(
                    "waiting for %.1f s for %s, which coordinates the job: %s",
                    now - self._quiet_since,
                    self._describe(0),
                    trouble,
                )
            self._remind(now - self._quiet_since)

    def answered(self, rank: int, stack: str, now: float) -> None:
        """Do nothing: answers go to the coordinator."""
