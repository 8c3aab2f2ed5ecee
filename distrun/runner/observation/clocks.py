"""The clocks of the hosts on that of the launcher.

By questions and answers, as in NTP (RFC 5905): a host answers with its time after the question was asked and before the
answer has come. Both bound by how much its clock can be ahead. The narrowest bounds on either side need not be of the
same answer, so each side keeps the best of all answers: what a busy machine or a full link delays on one way only does
no harm. Clocks drift, so bounds grow wider with their age.

And by what the ranks do together, which bounds how far the clocks of their hosts are apart, better and more often.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distrun.tracing import layout
from distrun.tracing.reader import Event
from distrun.tracing.timeline.clock_bounds import ClockBounds
from distrun.tracing.timeline.stragglers import Key

DRIFT = 50e-6
"""Seconds per second by which two clocks may move apart: crystals are made to about 20 millionths."""


_UNKNOWN = 1 << 62


class Clock:
    """The clock of one host, by answers."""

    def __init__(self) -> None:
        self._bounds: tuple[int, int] | None = None  # by how much it can be ahead of the launcher's, at least, at most
        self._at = 0  # when they were true, on the launcher's clock

    def note(self, asked: int, theirs: int, answered: int) -> None:
        """Take an answer: asked and answered by our clock, given in between by theirs; nanoseconds."""
        low, high = theirs - answered, theirs - asked
        if self._bounds is not None:
            drift = int(DRIFT * (answered - self._at))
            low, high = max(low, self._bounds[0] - drift), min(high, self._bounds[1] + drift)
            if low > high:  # one of the clocks has stood still while its machine was asleep
                low, high = theirs - answered, theirs - asked
        self._bounds, self._at = (low, high), answered

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the most by which the host's clock can be ahead, at the last answer; before any, everything."""
        return self._bounds or (-_UNKNOWN, _UNKNOWN)


class Clocks:
    """The clocks of all hosts with ranks."""

    def __init__(self) -> None:
        self.reference = ""
        """The host against whose clock the errors of the others are: the launcher's own, if it has ranks."""
        self._asked: dict[str, Clock] = {}
        self._together = ClockBounds("", DRIFT)
        self._speakers: dict[str, int] = {}
        self._generations: dict[str, int] = {}

    @property
    def remote(self) -> Sequence[str]:
        """The hosts whose clocks must be asked for."""
        return list(self._asked)

    def add(self, host: str, is_remote: bool) -> None:
        """Know one more host."""
        if is_remote:
            self._asked[host] = Clock()
        if not self.reference or (not is_remote and self.reference in self._asked):
            self.reference, self._together = host, ClockBounds(host, DRIFT)

    def answered(self, host: str, asked: int, theirs: int, answered: int) -> None:
        """Take an answer of a host."""
        if host in self._asked:
            self._asked[host].note(asked, theirs, answered)

    def learn(self, host: str, process: int, events: Iterable[Event], names: Sequence[str]) -> None:
        """Take new events of a process, by its host's clock. One process of each host tells enough."""
        if not self._asked:
            return
        speaker = self._speakers.setdefault(host, process)
        for event in events:
            if event.kind == layout.GENERATION and event.number > self._generations.get(host, 0):
                self._generations[host] = event.number
                speaker = self._speakers[host] = process
            elif event.kind == layout.DONE and event.submitted and process == speaker:
                key = Key(self._generations.get(host, 0), event.process_set, names[event.name], event.number)
                self._together.note(host, key, event.submitted, event.end)

    def offset(self, host: str) -> int:
        """Return the host's clock less the launcher's, in nanoseconds."""
        low, high = self._between(host)
        least, most = self._by_answers(self.reference)
        return (low + high) // 2 + (least + most) // 2

    def error(self, host: str) -> int:
        """Return the most by which `offset` is wrong against that of the reference, in nanoseconds."""
        low, high = self._between(host)
        return (high - low + 1) // 2

    def _between(self, host: str) -> tuple[int, int]:
        """Return the least and the most by which a host's clock can be ahead of that of the reference."""
        if host == self.reference:
            return 0, 0
        theirs, ours = self._by_answers(host), self._by_answers(self.reference)
        low, high = theirs[0] - ours[1], theirs[1] - ours[0]
        least, most = self._together.bounds(host) or (low, high)
        narrow = max(low, least), min(high, most)
        return narrow if narrow[0] <= narrow[1] else (low, high)  # else a machine was asleep

    def _by_answers(self, host: str) -> tuple[int, int]:
        return self._asked[host].bounds if host in self._asked else (0, 0)
