"""Withdrawal of offers: what the coordinator does before it gives up an operation that it has offered.

The other rank has, or will soon have, the offer, and would begin the operation as soon as it submits it. So it is asked
to drop the offers that it has received. Messages arrive in order: an offer of its own that comes before its answer has
crossed with this rank's, and both do the operation. After the answer, what both submit is decided in the ordinary way.
Where the other rank does not answer in time, since it is stopped for example, the caller gets its error, and the
operation is given up when the answer comes. Until then both would do it, each in the same place.
"""

from __future__ import annotations

from collections.abc import Callable

from distrun.runtime.negotiation.eager.piggyback import Piggyback

ANSWER_TIME = 1.0
"""Seconds that the other rank has for its answer."""


class Withdrawal:
    """The coordinator's withdrawals, which precede its answers about missing ranks as a `Survey` does."""

    def __init__(self, piggyback: Piggyback, ask: Callable[[], None]) -> None:
        """`ask` sends the other rank the request to drop this rank's offers."""
        self._piggyback = piggyback
        self._ask = ask
        self._last: int | None = None  # the number of the last offer to be withdrawn, until the other rank has answered
        self.deadline = 0.0

    def begin(self, now: float) -> None:
        """Ask the other rank, unless its answer is still expected."""
        if self._last is None:
            self._last, self.deadline = self._piggyback.offers, now + ANSWER_TIME
            self._ask()

    def is_under_way(self, now: float) -> bool:
        """Return whether the answer is still expected."""
        return self._last is not None and now < self.deadline

    def is_fresh(self, now: float) -> bool:
        """Return whether no offer of this rank is outstanding, or the other rank has not answered in time."""
        return not self._piggyback.is_offering or self.is_unanswered(now)

    def is_unanswered(self, now: float) -> bool:
        """Return whether the other rank has not answered in time."""
        return self._last is not None and now >= self.deadline

    def answered(self) -> None:
        """Note that the other rank has dropped the offers that it had when it was asked."""
        if self._last is not None:
            self._piggyback.withdraw(self._last)
            self._last = None
