"""Hundreds of hosts, simulated: agents that answer in memory, connected to by the real connector, run by the real job.

`pytest -s` shows what a launch costs the launcher itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from distrun.host.interfaces import Interface
from distrun.runner.decisions.events import AgentGone, HostReady, HostRefused, RankExited
from distrun.runner.hosts.connector import Connector
from distrun.runner.hosts.nodes.messages import Notification
from distrun.runner.job.job import Job
from distrun.runner.job.options import JobOptions
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.planning.planner import make_plan
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.frames import Frame, FrameDecoder, FrameKind
from distrun.runner.protocol.handshake import HostError, HostInfo
from distrun.runner.system.fan_out import MAX_THREADS

DEADLINE = 60.0  # seconds


class SimulatedAgent:
    """Obeys like an agent whose ranks print a line and end; implements `AgentProcess` with a pipe."""

    keepalive: float | None = 1000.0
    host_info = HostInfo("", "", 1, 4711, addresses=(Interface("eth0", "10.0.0.1", 24),))
    pid = 1

    def __init__(self) -> None:
        self._reports, self._writer = os.pipe()
        self._decoder = FrameDecoder()

    def read(self) -> bytes:
        return os.read(self._reports, 1 << 16)

    def write(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            if frame.kind is FrameKind.PLAN:
                self._run(AgentPlan.from_json(frame.payload))
            elif frame.kind is FrameKind.FINISH:
                os.write(self._writer, Frame(FrameKind.GONE, payload=b"0 0").encode())
                os.close(self._writer)

    status = 0

    def _run(self, plan: AgentPlan) -> None:
        for rank in plan.ranks:
            line = f"{rank.environ['RANK']} {rank.environ['MASTER_PORT']}\n".encode()
            said = (Frame.number(FrameKind.STARTED, 1, rank.rank), Frame(FrameKind.STDOUT, rank.rank, line))
            os.write(self._writer, b"".join(frame.encode() for frame in said))
            os.write(self._writer, Frame(FrameKind.EXITED, rank.rank, RankExit(self.status).encode()).encode())

    def end_of_life(self) -> tuple[str, int]:
        return "left", 0

    def kill(self) -> None:
        os.close(self._writer)

    def clean_up(self, pids: set[int]) -> None:
        pass

    def close(self) -> None:
        os.close(self._reports)


class Simulation:
    """A `Starter` of such agents."""

    def __init__(self, refuse: frozenset[str] = frozenset()) -> None:
        self.refuse = refuse
        self.most = self._now = 0
        self._lock = threading.Lock()

    def start(self, plan: AgentPlan, on_step: Callable[[str], None]) -> tuple[SimulatedAgent, str]:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            if plan.host in self.refuse:
                raise HostError("it is on fire")
            return SimulatedAgent(), ""
        finally:
            with self._lock:
                self._now -= 1

    def close(self) -> None:
        pass


class Collected:
    """A sink that keeps what is printed."""

    is_terminal = False

    def __init__(self) -> None:
        self.data = b""
        self.identity = id(self)

    def write(self, data: bytes) -> None:
        self.data += data


def made_plan(count, ranks=1):
    hosts = tuple(Host(f"host{number}", ranks) for number in range(count))
    routes = {host.name: Route(host.name, host.name) for host in hosts}
    launcher = LaunchContext({}, "/", "0" * 32, "1" * 64, 4712, cores=2, slots=2, routes=routes)
    return make_plan(LaunchRequest(("train",), hosts=hosts), launcher)


@pytest.mark.parametrize("count", [1, 10, 100, pytest.param(1000, marks=pytest.mark.full)])
def test_every_rank_of_so_many_hosts_runs_and_ends(count):
    started = time.perf_counter()
    plan = made_plan(count, ranks=2)
    planned = time.perf_counter()
    out, err = Collected(), Collected()
    starter = Simulation()
    outcome = Job(plan, JobOptions(notes=False), out, err, starter).run()
    ended = time.perf_counter()
    assert outcome.status == 0, err.data
    expected = {b"[%d] %d 4711" % (rank, rank) for rank in range(2 * count)}
    assert set(out.data.splitlines()) == expected
    assert starter.most <= MAX_THREADS
    total = ended - started
    print(f"\n{count} hosts: plan {planned - started:.3f} s, total {total:.3f} s, {total / count * 1e3:.2f} ms a host")


def test_all_hosts_that_refuse_are_named_and_no_rank_starts():
    plan = made_plan(300)
    bad = frozenset(part.host for part in plan.agents[::100])
    out, err = Collected(), Collected()
    outcome = Job(plan, JobOptions(notes=False), out, err, Simulation(bad)).run()
    assert outcome.status == 2
    assert out.data == b""
    assert outcome.failure_report.count("it is on fire") == 3
    assert all(f"    {host}: " in outcome.failure_report for host in bad)


def test_an_agent_that_comes_after_the_end_is_let_go():
    """The connection of a slow host must not survive a launch that was given up."""
    (plan,) = made_plan(1).agents
    reached, released = threading.Event(), threading.Event()
    closed = threading.Event()

    class Slow(Simulation):
        def start(self, plan, on_step):
            reached.set()
            assert released.wait(DEADLINE)
            agent, note = super().start(plan, on_step)
            agent.close = closed.set
            return agent, note

    posted = []
    connector = Connector([plan], Slow(), posted.append)
    connector.start()
    assert reached.wait(DEADLINE)
    connector.close()
    released.set()
    assert closed.wait(DEADLINE)
    assert posted == []


def test_an_error_nobody_expected_is_a_refusal():
    (plan,) = made_plan(1).agents
    told = threading.Event()
    posted = []

    class Broken(Simulation):
        def start(self, plan, on_step):
            raise ZeroDivisionError("oops")

    def post(event):
        posted.append(event)
        told.set()

    Connector([plan], Broken(), post).start()
    assert told.wait(DEADLINE)
    assert posted == [HostRefused("host0", "ZeroDivisionError('oops')")]
    assert HostReady("host0") not in posted


def test_a_host_that_is_ready_too_late_does_not_keep_the_launch():
    released = threading.Event()

    class Late(Simulation):
        def start(self, plan, on_step):
            if plan.host == "host1":
                assert released.wait(DEADLINE)
            return super().start(plan, on_step)

    class Releasing(Collected):
        """The report is printed when the decider has decided; the agent is ready in the middle of that."""

        def write(self, data):
            super().write(data)
            released.set()

    err = Releasing()
    outcome = Job(made_plan(2), JobOptions(start_timeout=0.2, notes=False), Collected(), err, Late()).run()
    assert outcome.status == 2
    assert "host1" in outcome.failure_report  # and host0 too, if it was not ready either


def test_what_follows_on_another_node_from_a_failure_here_is_not_taken_for_the_failure():
    class Failing(SimulatedAgent):
        status = 1

    class Starter(Simulation):
        def start(self, plan, on_step):
            return Failing(), ""

    class Other:
        """The launcher of host1, which hears of the failure and ends its rank before anything else happens here."""

        here = "host0"

        def start(self, on_notification):
            self._on_notification = on_notification

        def notify(self, event, stderr_tail=b""):
            if event == RankExited(0, RankExit(1)):
                self._on_notification(Notification("host1", RankExited(1, RankExit(-15))))
                self._on_notification(Notification("host1", AgentGone("host1", 0)))

        def close(self):
            pass

    outcome = Job(made_plan(2), JobOptions(notes=False), Collected(), Collected(), Starter(), Other()).run()
    assert (outcome.status, outcome.failure.rank) == (1, 0)
