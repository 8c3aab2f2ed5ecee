"""Questions to the coordinator about missing ranks, and the stalls that it reports by itself.

Both need to know what all ranks have submitted. Where leaders of hosts forward submissions, the leaders may still hold
some of them back, so a survey comes first (see `tree`). Where two ranks make each other offers, the coordinator's are
withdrawn first (see `withdrawal`).
"""

from __future__ import annotations

from distrun.runtime.negotiation import messages
from distrun.runtime.negotiation.decisions import Key
from distrun.runtime.negotiation.eager.withdrawal import Withdrawal
from distrun.runtime.negotiation.inquiries import Inquiries
from distrun.runtime.negotiation.stalls import CoordinatorStallMonitor
from distrun.runtime.transport.control.control_plane import ControlPlane


class Questions:
    """The coordinator's side of inquiries and reminders."""

    def __init__(
        self,
        rank: int,
        control_plane: ControlPlane,
        monitor: CoordinatorStallMonitor,
        inquiries: Inquiries,
        withdrawal: Withdrawal | None,
    ) -> None:
        """`rank` is the coordinator's, `monitor` knows which ranks are missing, and `inquiries` are the coordinator's
        own. `withdrawal` is given where there are offers."""
        self._rank = rank
        self._control_plane = control_plane
        self._monitor = monitor
        self._inquiries = inquiries
        self._survey = control_plane.survey or withdrawal
        self._withdrawal = withdrawal
        self.unanswered: list[tuple[int, bytes]] = []
        """Pairs of a rank and its question."""
        self._postponed: list[tuple[int, bytes]] = []  # likewise, until offers are withdrawn

    def ask(self, rank: int, question: bytes) -> None:
        """Note a question from a rank, one of `messages.QUESTIONS`."""
        self.unanswered.append((rank, question))

    def offers_are_withdrawn(self) -> None:
        """Note that the other rank has dropped the offers that it was asked to drop."""
        if self._withdrawal is not None:
            self._withdrawal.answered()
            self.unanswered += self._postponed
            self._postponed.clear()

    def answer(self, now: float) -> None:
        """Answer the questions if all submissions are known here. If not, begin a survey."""
        if not self._is_known(now):
            return
        unanswered, self.unanswered = self.unanswered, []
        for rank, question in unanswered:
            if question[:1] == messages.REMINDER:
                self._monitor.reminded(rank, messages.unpack_reminder(question), now)
                continue
            key, why = messages.unpack_key(question)
            if question[:1] == messages.INQUIRY:
                self._tell(rank, key, self._monitor.who_is_missing(key, now))
            elif self._withdrawal is not None and self._withdrawal.is_unanswered(now):
                # Given up now, the operation might still be done by the other rank alone.
                self._tell(rank, key, self._monitor.who_is_missing(key, now))
                self._postponed.append((rank, question))
            elif not self._monitor.give_up(key, why, now):
                self._tell(rank, key, "")

    def look(self, now: float) -> None:
        """Report or give up what has waited too long, if all submissions are known here. If not, begin a survey."""
        if not self._monitor.is_due(now) or self._is_known(now):
            self._monitor.look(now)

    def is_waiting(self, now: float) -> bool:
        """Whether a survey is in progress, or has ended and questions are yet to be answered."""
        return self._survey is not None and (bool(self.unanswered) or self._survey.is_under_way(now))

    def next_look(self, until: float, now: float) -> float:
        """Return the time of the next check, given that nothing else has to be checked before `until`."""
        if self._survey is None or not self.is_waiting(now):
            return until
        return self._survey.deadline if self.unanswered else max(until, self._survey.deadline)

    def _is_known(self, now: float) -> bool:
        if self._survey is None or self._survey.is_fresh(now):
            return True
        self._survey.begin(now)
        return False

    def _tell(self, rank: int, key: Key, missing: str) -> None:
        if rank == self._rank:
            self._inquiries.answered(key, missing)
        else:
            self._control_plane.send(rank, messages.pack_key(messages.MISSING, key, missing))
