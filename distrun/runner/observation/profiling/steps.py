"""The steps of one rank, each divided into what its main thread did, from its events in their order.

The optimizer ends a step. Within it, the last backward pass reduces the gradients: it has computed them all when the
last of them is ready, and what follows until the optimizer begins is communication that was not hidden.
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
"""Events of a step beyond which it is not looked at: they would be those of a script that does no steps."""


class ReductionTimes(NamedTuple):
    """One operation that reduced gradients, as this rank has seen it; times in nanoseconds."""

    name: str
    number: int
    """The how many-th time of that name, by which ranks can be compared."""
    size: int
    """Bytes."""
    ready: int
    """When the gradients were there."""
    submitted: int
    """When the coordinator was told."""
    begin: int
    end: int


class ProfiledStep(NamedTuple):
    """One step of one rank, in seconds; without what it slept for other ranks and for data."""

    whole: float
    """All of it."""
    forward: float
    backward: float
    """Up to the last gradient."""
    optimizer: float
    input: float
    other: float
    backward_began: int
    """When the pass began that reduced, in nanoseconds; 0: none is known."""
    reductions: tuple[ReductionTimes, ...]
    """In the order in which they were done."""
    on_gpu: bool
    """Whether a GPU computed the gradients."""


class RankSteps:
    """Takes the events of a rank, and gives its steps."""

    def __init__(self) -> None:
        self.generation = 0
        """The number of the world that it is in; 0: none yet."""
        self._began = 0  # 0: no step is being looked at
        self._states: list[tuple[int, int, int]] = []  # (begin, state, value)
        self._slept: list[Interval] = []
        self._done: list[Event] = []
        self._held: dict[int, int] = {}

    def begin_generation(self, number: int) -> None:
        """Forget the step under way: the rank has joined a new world."""
        self.generation = number
        self._began = 0
        self._forget()

    def _forget(self) -> None:
        self._states, self._slept, self._done, self._held = self._states[-1:], [], [], {}

    def take(self, events: Iterable[Event], names: Sequence[str]) -> Iterator[ProfiledStep]:
        """Take new events, and yield the steps that are over with them."""
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
        """Return the step from the last one until `end`."""
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
                # Gradients that are added up are computed before the pass that reduces; and where no loader tells that
                # a batch is there, a script computes forward from one step to the next gradient.
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
        """Yield the operations of gradients that became ready within bounds."""
        held = list(self._held.items())
        places = {name: place for place, (name, _) in enumerate(held)}
        for event in self._done:
            last = places.get(event.name, len(held)) + max(event.fused, 1) - 1  # of those that travelled together
            ready = held[last][1] if last < len(held) else event.submitted
            if begin <= ready < end:
                name = names[event.name] if event.name < len(names) else ""
                yield ReductionTimes(name, event.number, event.value, ready, event.submitted, event.begin, event.end)


def _awake(begin: int, end: int, slept: Sequence[Interval]) -> float:
    """Return the seconds from `begin` to `end` that were not slept."""
    return max(0, end - begin - length(common([(begin, end)], slept))) / _SECOND
