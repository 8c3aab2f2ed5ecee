"""An engine whose peers, time and sleep are the test's: when it would sleep, the next event of a history happens."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from histories.negotiating_rank import FakeControlPlane
from in_process.calls import DEADLINE, started

from distrun.errors import JobAbortedError
from distrun.runtime.backends.groups import Groups
from distrun.runtime.engine.autotuning import chosen, turns
from distrun.runtime.engine.engine import ProgressEngine
from distrun.runtime.gpu.monitor import GpuMonitor
from distrun.runtime.negotiation.decisions import Define
from distrun.runtime.negotiation.messages import pack_decision
from distrun.runtime.negotiation.negotiator import Negotiator
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request
from distrun.runtime.operations.timeouts import FOREVER
from distrun.runtime.operations.unreported import UnreportedError

Event = Callable[[], Any]


class FakeBell:
    """A bell that counts, and on which a thread of the test can sleep."""

    def __init__(self) -> None:
        self.rings = 0
        self.is_rung = threading.Event()

    def ring(self) -> None:
        self.rings += 1
        self.is_rung.set()

    force = ring

    def arm(self) -> None:
        pass

    disarm = arm


class FakeSleeper:
    """The progress thread's sleep: an event of its history, and, when there are no more, a sleep until its bell
    rings."""

    def __init__(self, group: FakeLocalGroup) -> None:
        self._group = group

    def sleep(self, timeout: float | None = None) -> list[int]:
        if self._group.thread_history:
            self._group.thread_history.popleft()()
            return []
        bell = self._group.service_bells[self._group.own]
        assert bell.is_rung.wait(DEADLINE), "nobody rings for the progress thread"
        bell.is_rung.clear()
        return []


class FakeLocalGroup:
    """The local group of rank 1 of 2, the other of which is not there."""

    def __init__(self) -> None:
        self.own = 1
        self.ranks = (0, 1)
        self.spare_cores = 0
        self.timeouts = FOREVER
        self.may_spin = False
        self.stop_reason: str | None = None
        self.is_nudged = False
        self.watched_since = 0.0
        self.bells = [FakeBell(), FakeBell()]
        self.service_bells = [FakeBell(), FakeBell()]
        self.bell = self.bells[self.own]
        self.announced: list[tuple[int, str]] = []
        self.history: deque[Event] = deque()
        """The events that happen while a thread waits for the peers, one at a time."""
        self.thread_history: deque[Event] = deque()
        """The events that happen while the progress thread sleeps."""
        self.is_closed = False

    def wait(self, ready: Callable[[], bool], what: Callable[[], str], *_: Any) -> bool:
        while not ready():
            assert self.history, f"nothing more happens, and this waits for ever: {what()}"
            self.history.popleft()()
        self.watched_since = time.monotonic()
        return True

    def sleep_on_bell(self) -> None:
        """An event: nothing, until our own bell rings."""
        assert self.bell.is_rung.wait(DEADLINE), "nobody rings"
        self.bell.is_rung.clear()

    def announce(self, state: int, reason: str = "") -> None:
        self.announced.append((state, reason))

    def clear_nudge(self) -> None:
        self.is_nudged = False

    def service_sleeper(self, watches_peers: bool) -> FakeSleeper:
        return FakeSleeper(self)

    def longest_nap(self) -> float | None:
        return None

    def disown(self) -> None:
        self.stop_reason = "this process was forked"

    def close(self, is_hurried: bool = False) -> None:
        self.is_closed = True


class ControlPlane(FakeControlPlane):
    """Messages that the test writes and reads, and alarms."""

    def __init__(self) -> None:
        super().__init__(is_across_hosts=False)
        self.alarms: deque[bool] = deque()

    def hear_alarms(self) -> bool:
        return bool(self.alarms) and self.alarms.popleft()

    def report_lost_ranks(self) -> str | None:
        return None

    def trouble(self, is_undecided: bool) -> str | None:
        return self.lost


class FakeBackend:
    """Notes what is executed; an allreduce of one rank, so to speak."""

    def __init__(self) -> None:
        self.size = 2
        self.executed: list[str] = []
        self.during: deque[Event] = deque()
        """The events that happen while operations are executed."""
        self.is_closed = False

    def allreduce(self, inputs: Any, outputs: Any, how: Any, what: str, feedback: Any = None) -> None:
        if self.during:
            self.during.popleft()()
        self.executed.append(what)

    def wire_of(self, request: Request) -> str:
        return ""

    def quantisation_of(self, request: Request) -> str:
        return ""

    def close(self) -> None:
        self.is_closed = True


class Rank:
    """The engine of rank 1 of 2, a follower, and all that surrounds it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.group = FakeLocalGroup()
        self.control = ControlPlane()
        self.backend = FakeBackend()
        self.operations = PendingOperations(1 << 20)
        self.pauses: deque[Event] = deque()
        clock = lambda: self.now  # noqa: E731
        negotiator = Negotiator(1, 2, self.control, self.operations, None, None, FOREVER, "<{}>".format, {}, clock)
        unreported = UnreportedError()
        groups = Groups(self.backend)
        monitor = GpuMonitor(None, groups, unreported_error=unreported)
        self.engine = ProgressEngine(
            self.group, groups, None, self.operations, negotiator, monitor, unreported, clock, self._pause
        )
        self.is_started = False

    def _pause(self, seconds: float) -> None:
        self.now += seconds
        if self.pauses:
            self.pauses.popleft()()

    def start(self) -> None:
        self.is_started = True
        self.engine.start()

    @property
    def turn(self) -> str:
        return self.engine._state.turn.value

    @property
    def rings(self) -> int:
        """How often the progress thread was rung for."""
        return self.group.service_bells[self.group.own].rings

    def handle(self, name: str | None, count: int = 3) -> Handle:
        array = np.ones(count, np.float32)
        return Handle(self.engine, Request("allreduce", name, "float32", ((count,),)), [array], [array])

    def decide(self, *handles: Handle, cache_id: int = -1) -> None:
        """The coordinator's decisions come: to execute these, which it has not seen before."""
        for handle in handles:
            self.control.inbox.append((0, pack_decision(Define(cache_id, handle.request))))

    def failure_of(self, handle: Handle) -> str:
        assert handle.done, "it is neither executed nor failed"
        assert isinstance(handle.error, JobAbortedError), handle.error
        return str(handle.error)


@pytest.fixture
def make_rank() -> Iterator[Callable[[], Rank]]:
    """Makes followers, and ends their threads."""
    made: list[Rank] = []
    yield lambda: made.append(Rank()) or made[-1]
    for rank in made:
        if rank.is_started and not rank.group.is_closed:
            rank.engine.shutdown()


@pytest.fixture
def rank(make_rank: Callable[[], Rank]) -> Rank:
    return make_rank()


@pytest.fixture
def nothing_tuned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(chosen, "_tuned", [])
    turns.begin_world()
    yield
    turns.begin_world()


@pytest.fixture
def in_thread() -> Iterator[Callable[[Event], Future[Any]]]:
    """Starts threads, and waits for their ends; what one raises fails the test."""
    calls: list[Future[Any]] = []
    yield lambda work: calls.append(started(work)) or calls[-1]
    for call in calls:
        call.result(DEADLINE)
