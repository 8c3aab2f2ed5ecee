"""Histories of trainings: the events that ranks record, made up step by step, and told as agents tell them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from distrun.runner.observation.consumer import Source
from distrun.tracing.layout import BACKWARD, DONE, FORWARD, GENERATION, INPUT, OPTIMIZER, STEP, WAITED, WAITING
from distrun.tracing.reader import Event

MS = 1_000_000
NAMES = ["", "gradients 1", "gradients 2"]
START = 1_000 * 1_000 * MS


class Listener(Protocol):
    """A model, or a consumer, that takes the events of a history."""

    def events(self, source: Source, events: Sequence[Event], names: Sequence[str]) -> None: ...
    def sample(self, host: str, sample: Mapping[str, Any]) -> None: ...
    def tick(self, now: int) -> None: ...


def event(kind: int, begin: int, end: int = 0, **values: int) -> Event:
    """Return an event of some kind."""
    others = {"submitted": 0, "value": 0, "name": 0, "number": 0, "process_set": 0, "fused": 1} | values
    return Event(begin=begin, end=end, kind=kind, **others)


class History:
    """A data-parallel training, step by step."""

    def __init__(
        self,
        size: int,
        input_ms: Callable[[int, int], float] = lambda rank, step: 1.0,
        forward_ms: Callable[[int, int], float] = lambda rank, step: 40.0,
        moving_ms: float = 4.0,
    ) -> None:
        """Args: the number of ranks; what a step of a rank takes; how long the data moves."""
        self.size = size
        self._input_ms, self._forward_ms, self._moving = input_ms, forward_ms, int(moving_ms * MS)
        self._now = [START] * size
        self._step = 0
        self.begun: list[list[Event]] = [[event(GENERATION, START, number=1)] for _ in range(size)]

    def step(self) -> list[list[Event]]:
        """Return the events of all ranks in one more step."""
        self._step += 1
        told, self.begun = self.begun, [[] for _ in range(self.size)]
        submitted: list[list[int]] = []
        for rank, events in enumerate(told):
            now = self._now[rank]
            events.append(event(INPUT, now))
            now += int(self._input_ms(rank, self._step) * MS)
            events.append(event(FORWARD, now, value=32))
            half = int(self._forward_ms(rank, self._step) * MS) // 2
            events.append(event(BACKWARD, now + half))
            submitted.append([now + half * 3 // 2, now + 2 * half])
            now += 2 * half
            events.append(event(WAITING, now, name=2))
            self._now[rank] = now
        ready = 0
        for bucket in (0, 1):
            ready = max(ready, *(times[bucket] for times in submitted)) + self._moving // 2
            for rank, events in enumerate(told):
                begin = ready - self._moving // 2
                done = {"submitted": submitted[rank][bucket], "name": bucket + 1, "number": self._step, "value": 4096}
                events.append(event(DONE, begin, ready, **done))
        for rank, events in enumerate(told):
            events += [event(WAITED, self._now[rank], ready), event(OPTIMIZER, ready)]
            events.append(event(STEP, ready + MS, number=self._step))
            self._now[rank] = ready + MS
        return told

    @property
    def now(self) -> int:
        """When the last step ended."""
        return max(self._now)


ListenerT = TypeVar("ListenerT", bound="Listener")


def played(
    history: History,
    seconds: float,
    listener: Listener,
    hosts: int = 2,
    stops: Mapping[str, tuple[float, float]] | None = None,
) -> Iterator[float]:
    """Play a history to somebody as agents tell it, every half a second; yield the seconds since its beginning.

    `stops` has the seconds from which and until which the agent of a host is stopped; None: agents tell of no usage.
    """
    waiting: list[list[Event]] = [[] for _ in range(history.size)]
    host_of = [f"h{rank * hosts // history.size + 1}" for rank in range(history.size)]
    told_at = START
    while history.now < START + int(seconds * 1e9):
        for rank, events in enumerate(history.step()):
            waiting[rank] += events
        while told_at + 500 * MS <= history.now:
            told_at += 500 * MS
            at = (told_at - START) / 1e9
            stopped = {host for host, (begin, end) in (stops or {}).items() if begin <= at < end}
            for rank, events in enumerate(waiting):
                if host_of[rank] not in stopped:
                    now = [one for one in events if max(one.begin, one.end) <= told_at]
                    waiting[rank] = events[len(now) :]
                    listener.events(Source(rank, rank, host_of[rank]), now, NAMES)
            for host in () if stops is None else sorted(set(host_of) - stopped):
                used = {str(rank): {"cpu": 1.0, "memory": 1} for rank in range(history.size) if host_of[rank] == host}
                sample = {"time": told_at, "cpu": 5.0, "memory": 6.0, "network": {}, "ranks": used}
                listener.sample(host, sample)
            listener.tick(told_at)
            yield at


def play(history: History, seconds: float, listener: ListenerT, **options: Any) -> ListenerT:
    """Play a history to its end, and return the listener."""
    for _ in played(history, seconds, listener, **options):
        pass
    return listener
