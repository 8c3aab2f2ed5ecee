"""The recent activities of each rank's main thread, and when each rank submitted each operation."""

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
    """The activities of one rank, back to the earliest second that may still be asked for."""

    def __init__(self, rank: int, host: str) -> None:
        self.rank = rank
        self.host = host
        self.heard_until = 0
        """The time of its last event."""
        self.state, self.since = 0, 0
        """The state of its main thread, one of `layout.STATES` (0 = unknown), and its begin."""
        self.active_at = 0
        """The time of its last step, and of the end of its last operation or sleep, whichever is latest."""
        self.waits_for, self.waits_since = "", 0
        """The operation that a thread sleeps for (empty = none does), and the begin of that sleep."""
        self.generation = 0
        self.steps = 0
        """The number of steps that it has done."""
        self.is_gone = False
        """Whether its process has ended, or its host's agent has sent nothing for long."""
        self.is_lost = False
        """Whether it was running when its host's agent was last heard of, long ago."""
        self.divided_until = 0
        """The end of its last divided second. Before the first one, the time of its first event."""
        self._states: deque[tuple[int, int]] = deque()  # (begin, state)
        self._slept: deque[Interval] = deque()
        self._steps: deque[int] = deque()
        self._samples: deque[tuple[int, int]] = deque()

    def take(self, events: Iterable[Event], names: Sequence[str], operations: Operations) -> None:
        """Take new events, in order, and add submissions to `operations`.

        A step in a second that is divided already counts in the next one: its rank had no core between reading the
        clock and writing the event.
        """
        for event in events:
            self.divided_until = self.divided_until or event.begin
            kind = event.kind
            at = max(event.begin, self.divided_until)
            self.heard_until = max(self.heard_until, at, event.end)
            if kind in (DONE, WAITED, STEP):
                self.active_at = max(self.active_at, event.begin, event.end)
            if kind == DONE:
                if event.submitted:
                    name = names[event.name] if event.name < len(names) else ""
                    operation = OperationId(name, event.number, event.process_set, self.generation)
                    operations.add(operation, self.rank, event.submitted)
            elif kind in STATES:
                self._enter(kind, event.begin)
                if kind == FORWARD and event.value:
                    self._samples.append((at, event.value))
            elif kind == WAITING:
                self.waits_for = (names[event.name] if event.name < len(names) else "") or "an operation"
                self.waits_since = event.begin
            elif kind == WAITED:
                self.waits_for = ""
                self._slept.append((event.begin, event.end))
            elif kind == STEP:
                self.steps = event.number
                self._steps.append(at)
            elif kind == GENERATION:
                self.generation = event.number

    def leave(self) -> None:
        """Mark its process as ended, so that it neither waits nor is waited for."""
        self.is_gone = True
        self.waits_for = ""

    def is_there(self, begin: int) -> bool:
        """Return whether it may have done something after `begin`."""
        return self.heard_until > 0 and not (self.is_gone and self.heard_until <= begin)

    def _enter(self, state: int, begin: int) -> None:
        self.waits_for = ""  # a change of state implies that the wait is over
        self.state, self.since = state, begin
        self._states.append((begin, state))

    def asleep(self, begin: int, end: int) -> list[Interval]:
        """Return the intervals from `begin` to `end` that it slept."""
        open_sleep = [(self.waits_since, end)] if self.waits_for and self.waits_since < end else []
        return union(clipped([*self._slept, *open_sleep], begin, end))

    def states(self, begin: int, end: int) -> dict[int, list[Interval]]:
        """Return the intervals of each state from `begin` to `end`, asleep or not."""
        found: dict[int, list[Interval]] = {}
        entries = [*self._states, (end, 0)]
        for (entered, state), (left, _) in pairwise(entries):
            if entered < end and left > begin:
                found.setdefault(state, []).append((max(entered, begin), min(left, end)))
        return {state: union(intervals) for state, intervals in found.items()}

    def steps_in(self, begin: int, end: int) -> int:
        """Return the number of steps that ended from `begin` to `end`."""
        return sum(begin <= at < end for at in self._steps)

    def samples_in(self, begin: int, end: int) -> int:
        """Return the number of samples whose forward pass began from `begin` to `end`."""
        return sum(count for at, count in self._samples if begin <= at < end)

    def forget(self, before: int) -> None:
        """Drop everything before a time that is not asked for again."""
        while len(self._states) > 1 and self._states[1][0] <= before:
            self._states.popleft()
        while self._slept and self._slept[0][1] <= before:
            self._slept.popleft()
        while self._steps and self._steps[0] < before:
            self._steps.popleft()
        while self._samples and self._samples[0][0] < before:
            self._samples.popleft()


class Operations:
    """The times when each rank submitted each operation. With many operations, only every 2nd, 4th, 8th ... is kept."""

    MOST = 40_000
    """The largest number of entries, which cover a second or two. With more, the stride doubles."""

    def __init__(self) -> None:
        self.stride = 1
        """One in `stride` operations of each name is kept, the same ones on all ranks."""
        self._submitted: dict[OperationId, dict[int, int]] = {}
        self._entries = 0

    def add(self, operation: OperationId, rank: int, submitted: int) -> None:
        """Record that a rank submitted an operation at the time `submitted`."""
        if operation.number % self.stride:
            return
        self._submitted.setdefault(operation, {})[rank] = submitted
        self._entries += 1
        if self._entries > self.MOST:
            self.stride *= 2
            self._keep({key: ranks for key, ranks in self._submitted.items() if not key.number % self.stride})

    def within(self, begin: int, end: int) -> list[dict[int, int]]:
        """Return the operations whose ranks may have waited for each other from `begin` to `end`."""
        return [
            ranks
            for ranks in self._submitted.values()
            if len(ranks) > 1 and max(ranks.values()) > begin and min(ranks.values()) < end
        ]

    def forget(self, before: int) -> None:
        """Drop the operations that all ranks submitted before a time."""
        self._keep({key: ranks for key, ranks in self._submitted.items() if max(ranks.values()) > before})

    def _keep(self, kept: dict[OperationId, dict[int, int]]) -> None:
        self._submitted = kept
        self._entries = sum(map(len, kept.values()))
