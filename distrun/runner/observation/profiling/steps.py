"""The steps of one rank, each divided by the activities of its main thread, from the rank's events in order.

The optimizer ends a step. The last backward pass of a step reduces the gradients. It has computed them all when the
last one is ready. The time from then until the optimizer begins is communication that did not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from distrun.runner.observation.model.intervals import Interval, clipped, common, length, union
from distrun.tracing import layout
from distrun.tracing.reader import Event

_SECOND = 1e9
_MOST_EVENTS = 20_000
"""Steps with more events are dropped: the script probably does no steps."""


class ReductionTimes(NamedTuple):
    """One operation that reduced gradients, as recorded by one rank. Times are in nanoseconds."""

    name: str
    number: int
    """The count of operations with this name, which matches it with the records of other ranks."""
    size: int
    """Bytes."""
    ready: int
    """When the gradients were ready."""
    submitted: int
    """When the request was sent to the coordinator."""
    begin: int
    end: int


class ProfiledStep(NamedTuple):
    """One step of one rank, in seconds. The parts are without sleep, for other ranks or for data."""

    whole: float
    """The whole step, including sleep."""
    forward: float
    backward: float
    """Up to the last gradient."""
    optimizer: float
    input: float
    other: float
    backward_began: int
    """The start of the pass that reduced the gradients, in nanoseconds. 0 = unknown."""
    reductions: tuple[ReductionTimes, ...]
    """The operations, in the order of their completion."""
    on_gpu: bool
    """Whether a GPU computed the gradients."""


class RankSteps:
    """Takes the events of a rank, and yields its steps."""

    def __init__(self) -> None:
        self.generation = 0
        """The number of the rank's world. 0 = none yet."""
        self._began = 0  # 0 = no step has begun
        self._states: list[tuple[int, int, int]] = []  # (begin, state, value)
        self._slept: list[Interval] = []
        self._done: list[Event] = []
        self._held: dict[int, int] = {}

    def begin_generation(self, number: int) -> None:
        """Forget the current step: the rank has joined a new world."""
        self.generation = number
        self._began = 0
        self._forget()

    def _forget(self) -> None:
        self._states, self._slept, self._done, self._held = self._states[-1:], [], [], {}

    def take(self, events: Iterable[Event], names: Sequence[str]) -> Iterator[ProfiledStep]:
        """Take new events, and yield the steps that they complete."""
        for event in events:
            kind = event.kind
            if kind == layout.STEP:
                if self._began and len(self._done) < _MOST_EVENTS:
                    yield self._step(event.begin, names)
                self._forget()
                self._began = event.begin
            elif kind in layout.STATES:
                self._states.append((event.begin, kind, event.value))
            elif kind == layout.WAITED:
                self._slept.append((event.begin, event.end))
            elif kind == layout.HELD:
                self._held[event.name] = event.begin
            elif kind == layout.DONE and event.submitted and not event.process_set:
                self._done.append(event)
            if len(self._states) + len(self._slept) + len(self._done) > _MOST_EVENTS:
                self._began = 0
                self._forget()

    def _step(self, end: int, names: Sequence[str]) -> ProfiledStep:
        """Return the step that ended at `end`."""
        states = [
            (max(begin, self._began), left, state, value)
            for (begin, state, value), (left, _, _) in pairwise([*self._states, (end, 0, 0)])
            if left > self._began
        ]
        slept = union(clipped(self._slept, self._began, end))
        last = max((at for at, one in enumerate(states) if one[2] == layout.BACKWARD), default=-1)
        seconds = dict.fromkeys(layout.STATES, 0.0)
        knows_forward = any(one[2] == layout.FORWARD for one in states)
        for at, (begin, left, state, _) in enumerate(states):
            if at < last and (state == layout.BACKWARD or (state == layout.OTHER and not knows_forward)):
                # With gradient accumulation, backward passes before the last one reduce nothing, and count as forward.
                # Without a loader that records when a batch is ready, all time from the previous step to the first
                # gradient counts as forward, too.
                state = layout.FORWARD
            if at != last:
                seconds[state] += _awake(begin, left, slept)
        backward_began = 0
        reductions: tuple[ReductionTimes, ...] = ()
        if last >= 0:
            backward_began, left = states[last][:2]
            reductions = tuple(self._reductions(backward_began, left, names))
            computed = max((one.ready for one in reductions), default=left)
            seconds[layout.BACKWARD] = _awake(backward_began, computed, slept)
        return ProfiledStep(
            whole=(end - self._began) / _SECOND,
            forward=seconds[layout.FORWARD],
            backward=seconds[layout.BACKWARD],
            optimizer=seconds[layout.OPTIMIZER],
            input=seconds[layout.INPUT],
            other=seconds[layout.OTHER] + seconds[layout.SAVING],
            backward_began=backward_began,
            reductions=reductions,
            on_gpu=last >= 0 and bool(states[last][3]),
        )

    def _reductions(self, begin: int, end: int, names: Sequence[str]) -> Iterator[ReductionTimes]:
        """Yield the operations whose gradients became ready from `begin` to `end`."""
        held = list(self._held.items())
        places = {name: place for place, (name, _) in enumerate(held)}
        for event in self._done:
            last = places.get(event.name, len(held)) + max(event.fused, 1) - 1  # the last of those that were fused
            ready = held[last][1] if last < len(held) else event.submitted
            if begin <= ready < end:
                name = names[event.name] if event.name < len(names) else ""
                yield ReductionTimes(name, event.number, event.value, ready, event.submitted, event.begin, event.end)


def _awake(begin: int, end: int, slept: Sequence[Interval]) -> float:
    """Return the seconds from `begin` to `end` without sleep."""
    return max(0, end - begin - length(common([(begin, end)], slept))) / _SECOND
