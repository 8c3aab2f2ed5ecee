"""The figures of one rank from its own events: its step rate, and how its main thread spends the time. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from distrun.tracing.layout import BACKWARD, FORWARD, INPUT, OPTIMIZER, STATES, STEP, WAITED, WAITING
from distrun.tracing.reader import Event

_SECOND = 1e9
_COMPUTING = (FORWARD, BACKWARD, OPTIMIZER)


class Shares:
    """Takes the events of a rank in order, and returns the figures of one interval after the other."""

    def __init__(self, now: int) -> None:
        """Args: the time when the first interval begins, in nanoseconds, by the clock of the events."""
        self.step = 0
        """The last completed step."""
        self._began = now
        self._state, self._since = 0, now
        self._sleeps_since = 0  # 0: it is awake
        self._asleep_in_state = 0
        self._seconds: dict[int, int] = {}
        self._asleep = self._steps = self._samples = 0

    def take(self, events: Iterable[Event]) -> None:
        """Take new events."""
        for event in events:
            kind = event.kind
            if kind in STATES:
                self._leave_state(event.begin)
                self._state = kind
                if kind == FORWARD:
                    self._samples += event.value
            elif kind == WAITING:
                self._sleeps_since = event.begin
            elif kind == WAITED:
                self._sleeps_since = 0
                self._slept(event.begin, event.end)
            elif kind == STEP:
                self.step = event.number
                self._steps += 1

    def figures(self, now: int) -> dict[str, float]:
        """Return the figures of the interval that ends at `now`, by name. Empty if no step was completed in it."""
        if self._sleeps_since:
            self._slept(self._sleeps_since, now)
        self._leave_state(now)
        length, steps = (now - self._began) / _SECOND, self._steps
        found: dict[str, float] = {}
        if steps and length > 0:
            found["steps_per_second"] = steps / length
            if self._samples:
                found["samples_per_second"] = self._samples / length
            if self._seconds.keys() - {0}:
                found["share_input"] = self._seconds.get(INPUT, 0) / _SECOND / length
                found["share_computing"] = sum(self._seconds.get(one, 0) for one in _COMPUTING) / _SECOND / length
            found["share_waiting"] = self._asleep / _SECOND / length
        self._began, self._seconds = now, {}
        self._asleep = self._steps = self._samples = 0
        return {f"distrun/{name}": value for name, value in found.items()}

    def _slept(self, begin: int, end: int) -> None:
        asleep = max(0, end - max(begin, self._began))
        self._asleep += asleep
        self._asleep_in_state += max(0, end - max(begin, self._since))

    def _leave_state(self, now: int) -> None:
        awake = max(0, now - self._since - self._asleep_in_state)
        self._seconds[self._state] = self._seconds.get(self._state, 0) + awake
        self._since, self._asleep_in_state = max(now, self._since), 0
