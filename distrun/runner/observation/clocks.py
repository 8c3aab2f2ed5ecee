"""The offsets of the hosts' clocks from the launcher's clock, with error bounds.

The first source is requests and replies, as in NTP (RFC 5905): a host replies with its time, which lies between the
launcher's times of the request and of the reply. Both bound by how much the host's clock can be ahead. The best lower
and the best upper bound need not come from the same reply, so each is kept separately: a delay in one direction, by a
busy machine or a full link, does no harm. Clocks drift, so bounds loosen with age.

The second source is the ranks' collective operations: none can end on one host before it has begun on all others. This
bounds the clocks of the hosts relative to each other, tighter and more often.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distrun.tracing import layout
from distrun.tracing.reader import Event
from distrun.tracing.timeline.clock_bounds import Bounds, ClockBounds
from distrun.tracing.timeline.travel import Key

DRIFT = 50e-6
"""Seconds per second that two clocks may drift apart: crystals are accurate to about 20 ppm each."""


class Clocks:
    """The clocks of all hosts with ranks."""

    def __init__(self) -> None:
        self.reference = ""
        """The host whose clock the errors of the others refer to: the launcher's own host, if it has ranks."""
        self._asked: dict[str, Bounds] = {}  # from its replies, by remote host
        self._together = ClockBounds("", DRIFT)
        self._speakers: dict[str, int] = {}
        self._generations: dict[str, int] = {}

    @property
    def remote(self) -> Sequence[str]:
        """The hosts that must be asked for their time."""
        return list(self._asked)

    def add(self, host: str, is_remote: bool) -> None:
        """Add a host."""
        if is_remote:
            self._asked[host] = Bounds()
        if not self.reference or (not is_remote and self.reference in self._asked):
            self.reference, self._together = host, ClockBounds(host, DRIFT)

    def answered(self, host: str, asked: int, theirs: int, answered: int) -> None:
        """Take a reply of a host: `asked` and `answered` by the launcher's clock, `theirs` by the host's."""
        if host in self._asked:
            self._asked[host] = self._asked[host].tightened(theirs - answered, theirs - asked, answered, DRIFT)

    def learn(self, host: str, process: int, events: Iterable[Event], names: Sequence[str]) -> None:
        """Take new events of a process, in its host's time. One process per host is enough."""
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
        """Return the host's clock minus the launcher's, in nanoseconds."""
        low, high = self._between(host)
        least, most = self._by_answers(self.reference)
        return (low + high) // 2 + (least + most) // 2

    def error(self, host: str) -> int:
        """Return the largest error of `offset` relative to the reference host, in nanoseconds."""
        low, high = self._between(host)
        return (high - low + 1) // 2

    def _between(self, host: str) -> tuple[int, int]:
        """Return the least and the most that a host's clock can be ahead of the reference host's."""
        if host == self.reference:
            return 0, 0
        theirs, ours = self._by_answers(host), self._by_answers(self.reference)
        low, high = theirs[0] - ours[1], theirs[1] - ours[0]
        least, most, _ = self._together.bounds(host)
        tight = max(low, least), min(high, most)
        return tight if tight[0] <= tight[1] else (low, high)  # else a machine was suspended

    def _by_answers(self, host: str) -> tuple[int, int]:
        return self._asked[host][:2] if host in self._asked else (0, 0)
