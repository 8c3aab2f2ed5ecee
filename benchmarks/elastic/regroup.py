"""Regroup: what a death costs the launcher of an elastic job, by the number of agents, without any process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Summary, summary
from distrun.contract.elastic.messages import Assignment, Enrolled, Joined, Waiting, encode
from distrun.host.interfaces import Interface
from distrun.runner.decisions.elastic.actions import BeginGeneration, Generation
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.decisions.elastic.policy import ElasticPolicy
from distrun.runner.decisions.events import Event, HostReady, ProcessSaid, RankExited, RankStarted
from distrun.runner.planning.elastic import ElasticPlanner
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route
from distrun.runner.planning.variables.ranks import RankLocation
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.protocol.handshake import HostInfo

AGENTS = (1, 10, 100, 1000)
SLOTS = 8
DEATHS = 6
DECIDED, ANNOUNCED, HEARD, TOGETHER = "decided", "announced", "heard", "together"


def compare(quick: bool) -> Comparison:
    """Compare what the launcher does from a death to the next generation, for more and more agents."""
    comparison = Comparison(
        f"regroup, seconds of the launcher from the death of a rank to the next generation, {SLOTS} ranks per agent",
        "agents",
        [DECIDED, ANNOUNCED, HEARD, TOGETHER],
        [],
        notes=[
            f"{DECIDED}: from the event to all actions; {ANNOUNCED}: the variables of all ranks, and a frame for each; "
            f"{HEARD}: what all ranks then say, that they have left the old generation and have joined the new one."
        ],
    )
    for agents in AGENTS:
        comparison.add(f"{agents:,}", _regroups(agents, 3 if quick else DEATHS))
    return comparison


class _Job:
    """An elastic job whose ranks say what they should."""

    def __init__(self, agents: int) -> None:
        self.hosts = [f"h{number}" for number in range(agents)]
        self.size = agents * SLOTS
        options = ElasticOptions(self.size, 1, self.size, max_restarts=100)
        self.now = 0.0
        self.policy = ElasticPolicy(dict.fromkeys(self.hosts, SLOTS), options, 5.0, 60.0, 0.0)
        self.policy.tick(0.0)
        self.generation = Generation(0, ())
        self.hear(HostReady(host) for host in self.hosts)
        self.hear(RankStarted(number, 1000 + number) for number in self.processes)
        self.hear(ProcessSaid(number, Joined(1)) for number in self.processes)
        self.hear(ProcessSaid(number, Enrolled(["torch"])) for number in self.processes)
        context = LaunchContext({}, "/", "0" * 32, "1" * 64, 4711, cores=SLOTS, slots=SLOTS)
        self.planner = ElasticPlanner(LaunchRequest(("python", "train.py")), context, options)
        for number, host in enumerate(self.hosts):
            lan = Interface("lan", f"10.0.{number // 250}.{number % 250 + 1}", 16)
            self.planner.part(Host(host, SLOTS), Route(host, host))
            self.planner.add(host, HostInfo("1", "3", 1, 80, "", (lan,), 90, tuple(range(81, 96)), host))

    @property
    def processes(self) -> list[int]:
        return [member.process for member in self.generation.members]

    def hear(self, events: Iterable[Event]) -> None:
        """Have the policy take events, one by one, as the launcher does."""
        for event in events:
            self._look([*self.policy.handle(event, self.now), *self.policy.tick(self.now)])

    def kill(self) -> None:
        """Have a rank in the middle die, until the next generation is begun."""
        self.hear([RankExited(self.processes[len(self.generation.members) // 2], RankExit(-9))])
        self.now += 0.02
        self._look(self.policy.tick(self.now))

    def announce(self) -> int:
        """Return the bytes of the frames that tell all ranks of the generation."""
        generation = self.generation
        places = [RankLocation(member.host, member.slot) for member in generation.members]
        environs = self.planner.world(places, generation.number).environs
        return sum(
            len(Frame(FrameKind.CONTROL, member.process, encode(message)).encode())
            for member, environ in zip(generation.members, environs, strict=True)
            for message in [Assignment(generation.number, environ, generation.reason)]
        )

    def answer(self) -> None:
        """Have all ranks say that they have left the old generation, and joined the new one."""
        number = self.generation.number
        self.hear(ProcessSaid(process, Waiting(number - 1, "rank 4 is gone")) for process in self.processes)
        self.hear(ProcessSaid(process, Joined(number)) for process in self.processes)

    def _look(self, actions: Iterable[object]) -> None:
        for action in actions:
            if isinstance(action, BeginGeneration):
                self.generation = action.generation


def _regroups(agents: int, deaths: int) -> dict[str, Summary]:
    job = _Job(agents)
    found: dict[str, list[float]] = {DECIDED: [], ANNOUNCED: [], HEARD: []}
    for number in range(deaths):
        job.now = 100.0 * (number + 1)
        found[DECIDED].append(_timed(job.kill))
        assert job.generation.number == number + 2, "there is no new generation"
        assert len(job.generation.members) == job.size - number - 1
        found[ANNOUNCED].append(_timed(job.announce))
        found[HEARD].append(_timed(job.answer))
    together = [sum(times) for times in zip(*found.values(), strict=True)]
    return {name: summary(times) for name, times in (*found.items(), (TOGETHER, together))}


def _timed(step: Callable[[], object]) -> float:
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun
