"""The account of each rank: what its main thread does and when it sleeps; and of each operation who began it when."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from distrun.runner.observation.model.intervals import Interval, clipped, union
from distrun.tracing.layout import DONE, FORWARD, GENERATION, STATES, STEP, WAITED, WAITING
from distrun.tracing.reader import Event

SECOND = 1_000_000_000


class OperationId(NamedTuple):
    """The identity of an operation, the same on all ranks that take part in it."""

    name: str
    number: int
    process_set: int
    generation: int


class Account:
    """One rank, as far back as its seconds have not been divided."""

    def __init__(self, rank: int, host: str) -> None:
        self.rank = rank
        self.host = host
        self.heard_until = 0
        """The time of its last event."""
        self.state, self.since = 0, 0
        """The state of its main thread, one of `layout.STATES` (0: not known), and since when."""
        self.waits_for, self.waits_since = "", 0
        """The operation for which a thread sleeps; empty: none does. And since when."""
        self.generation = 0
        self.steps = 0
        """Steps that it has done."""
        self.is_gone = False
        """Whether its process has ended, or nothing is heard of its host."""
        self.divided_until = 0
        """The end of the last second that was divided with what it did; before the first one, the time of its first
        event."""
        self._states: deque[tuple[int, int]] = deque()  # (begin, state)
        self._slept: deque[Interval] = deque()
        self._steps: deque[int] = deque()
        self._samples: deque[tuple[int, int]] = deque()

    def take(self, events: Iterable[Event], names: Sequence[str], operations: Operations) -> None:
        """Take new events, in order."""
        for event in events:
            self.divided_until = self.divided_until or event.begin
            kind = event.kind
            self.heard_until = max(self.heard_until, event.begin, event.end)
            if kind == DONE:
                if event.submitted:
                    name = names[event.name] if event.name < len(names) else ""
                    operation = OperationId(name, event.number, event.process_set, self.generation)
                    operations.add(operation, self.rank, event.submitted)
            elif kind in STATES:
                self._enter(kind, event.begin)
                if kind == FORWARD and event.value:
                    self._samples.append((event.begin, event.value))
            elif kind == WAITING:
                self.waits_for = (names[event.name] if event.name < len(names) else "") or "an operation"
                self.waits_since = event.begin
            elif kind == WAITED:
                self.waits_for = ""
                self._slept.append((event.begin, event.end))
            elif kind == STEP:
                self.steps = event.number
                self._steps.append(event.begin)
            elif kind == GENERATION:
                self.generation = event.number

    def leave(self) -> None:
        """Its process has ended: nobody waits for it any more, nor does it wait."""
        self.is_gone = True
        self.waits_for = ""

    def is_there(self, begin: int) -> bool:
        """Return whether there is something to say of what it did from some time on."""
        return self.heard_until > 0 and not (self.is_gone and self.heard_until <= begin)

    def _enter(self, state: int, begin: int) -> None:
        self.waits_for = ""  # whatever it was, it is over
        self.state, self.since = state, begin
        self._states.append((begin, state))

    def asleep(self, begin: int, end: int) -> list[Interval]:
        """Return when it slept within bounds."""
        open_sleep = [(self.waits_since, end)] if self.waits_for and self.waits_since < end else []
        return union(clipped([*self._slept, *open_sleep], begin, end))

    def states(self, begin: int, end: int) -> dict[int, list[Interval]]:
        """Return when its main thread did what, within bounds; asleep or not."""
        found: dict[int, list[Interval]] = {}
        entries = [*self._states, (end, 0)]
        for (entered, state), (left, _) in pairwise(entries):
            if entered < end and left > begin:
                found.setdefault(state, []).append((max(entered, begin), min(left, end)))
        return {state: union(intervals) for state, intervals in found.items()}

    def steps_in(self, begin: int, end: int) -> int:
        """Return the number of steps done within bounds."""
        return sum(begin <= at < end for at in self._steps)

    def samples_in(self, begin: int, end: int) -> int:
        """Return the number of samples begun within bounds."""
        return sum(count for at, count in self._samples if begin <= at < end)

    def forget(self, before: int) -> None:
        """Drop what nobody will ask for any more."""
        while len(self._states) > 1 and self._states[1][0] <= before:
            self._states.popleft()
        while self._slept and self._slept[0][1] <= before:
            self._slept.popleft()
        while self._steps and self._steps[0] < before:
            self._steps.popleft()
        while self._samples and self._samples[0][0] < before:
            self._samples.popleft()


class Operations:
    """When each rank told of each operation; of a job that does many, of every second, fourth, eighth time only."""

    MOST = 40_000
    """Entries that are kept for a second or two; with more, fewer operations are looked at."""

    def __init__(self) -> None:
        self.stride = 1
        """One operation in so many is looked at, of each name, the same ones on all ranks."""
        self._submitted: dict[OperationId, dict[int, int]] = {}
        self._entries = 0

    def add(self, operation: OperationId, rank: int, submitted: int) -> None:
        """A rank told of an operation at that time."""
        if operation.number % self.stride:
            return
        self._submitted.setdefault(operation, {})[rank] = submitted
        self._entries += 1
        if self._entries > self.MOST:
            self.stride *= 2
            self._keep({key: ranks for key, ranks in self._submitted.items() if not key.number % self.stride})

    def within(self, begin: int, end: int) -> list[dict[int, int]]:
        """Return the operations during which ranks may have waited for one another within bounds."""
        return [
            ranks
            for ranks in self._submitted.values()
            if len(ranks) > 1 and max(ranks.values()) > begin and min(ranks.values()) < end
        ]

    def forget(self, before: int) -> None:
        """Drop those that all ranks have told of before that time."""
        self._keep({key: ranks for key, ranks in self._submitted.items() if max(ranks.values()) > before})

    def _keep(self, kept: dict[OperationId, dict[int, int]]) -> None:
        self._submitted = kept
        self._entries = sum(map(len, kept.values()))
