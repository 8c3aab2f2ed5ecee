"""A simulated cluster: executes the actions of an elastic job's policy, and checks what must hold of each.

Its processes behave as ranks do: they join when all of their generation are there, wait when a peer has left, enrol if
their script is elastic, die when they are ended. Each process, agent and host reports in order; who is heard first is
for the test to choose.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from distrun.contract.elastic.messages import Ending, Enrolled, Finished, Joined, Waiting, Warm
from distrun.runner.decisions.actions import CleanUpAfter, FinishAgents, KillAgents, SignalRanks, TellDeparture
from distrun.runner.decisions.elastic import actions
from distrun.runner.decisions.elastic.policy import ElasticPolicy
from distrun.runner.decisions.events import (
    AgentGone,
    AgentLost,
    HostCleaned,
    HostReady,
    HostRefused,
    ProcessSaid,
    RankExited,
    RankStarted,
)
from distrun.runner.decisions.policy import State
from distrun.runner.protocol.exits import RankExit

ENDED = (State.ENDING, State.FINISHING, State.OVER)


@dataclass(eq=False)
class Simulated:
    """One process."""

    number: int
    host: str
    slot: int | None
    generation: int = 0  # the latest that it was assigned to
    joined: int = 0  # the latest that it has joined
    left: int = 0  # the latest that it has said to have left
    is_alive: bool = True
    is_spare: bool = False
    prepared: int = 0
    has_raised: bool = False  # its script is over, and its interpreter is about to exit


@dataclass
class Cluster:
    """Hosts, agents and processes, and the policy under test."""

    policy: ElasticPolicy
    options: object
    is_elastic: bool = True
    now: float = 0.0
    down: set[str] = field(default_factory=set)  # hosts that cannot be reached
    agents: set[str] = field(default_factory=set)
    processes: dict[int, Simulated] = field(default_factory=dict)
    generations: list[actions.Generation] = field(default_factory=list)
    unsaid: dict[str, deque] = field(default_factory=dict)  # who -> what it will say next
    said: list[str] = field(default_factory=list)

    # --- what happens

    def step(self, event=None):
        """Have the policy take an event, or only the time, and do what it asks for."""
        if event is not None:
            self.do(self.policy.handle(event, self.now))
        self.do(self.policy.tick(self.now))
        deadline = self.policy.deadline
        assert deadline is None or deadline > self.now or self.policy.state in ENDED, "it would be asked for ever"
        self.live()

    def hear(self, index=0):
        """Hear the next word of somebody; return whether there was any."""
        sources = [who for who, words in self.unsaid.items() if words]
        if not sources:
            return False
        self.step(self.unsaid[sources[index % len(sources)]].popleft())
        return True

    def say(self, who, event):
        self.unsaid.setdefault(who, deque()).append(event)

    def tell(self, number, message):
        if self.processes[number].is_alive:
            self.say(f"process {number}", ProcessSaid(number, message))

    def wait(self, seconds):
        """Let time pass, from deadline to deadline."""
        until = self.now + seconds
        while self.policy.deadline is not None and self.policy.deadline <= until:
            self.now = max(self.now, self.policy.deadline)
            self.step()
            if self.policy.state in ENDED and not self.alive():
                break
        self.now = until

    def calm_down(self):
        """Bring all hosts back, hear all there is and let time pass, until nothing happens any more."""
        self.down.clear()
        for _ in range(1000):
            while self.hear():
                pass
            deadline = self.policy.deadline
            if self.policy.state is State.OVER or deadline is None or deadline > self.now + 10_000:
                return
            self.now = max(self.now, deadline)
            self.step()
        raise AssertionError(f"there is no end of it, state {self.policy.state}: {self.said[-5:]}")

    # --- what may happen

    def alive(self):
        return [process for process in self.processes.values() if process.is_alive]

    def die(self, process, code, lost_peer=False):
        if process.is_alive:
            process.is_alive = False
            self.say(f"process {process.number}", RankExited(process.number, RankExit(code), lost_peer))

    def fail(self, process):
        """Have a script raise an exception, and its interpreter take its time to exit."""
        if process.is_alive and not process.has_raised:
            process.has_raised, process.left = True, process.generation
            self.tell(process.number, Ending("ValueError: no more data", "train.py:7 in train", 3))

    def lose(self, host, is_certain):
        """Cut a host off: its processes die, and the agent is missed."""
        for process in self.alive():
            if process.host == host:
                process.is_alive = False
                self.unsaid.pop(f"process {process.number}", None)
        if host in self.agents:
            self.agents.discard(host)
            if not is_certain:
                self.down.add(host)
            self.say(host, AgentLost(host, f"the agent on {host} was killed"))

    def live(self):
        """Have processes react to what has happened to their peers."""
        generation = self.generations[-1] if self.generations else None
        if generation is None:
            return
        members = [self.processes[member.process] for member in generation.members]
        if any(p.has_raised for p in members):
            members = [process for process in members if not process.has_raised]
            is_broken = True
        else:
            is_broken = any(not p.is_alive or p.left >= generation.number for p in members)
        if not is_broken and all(
            p.is_alive and p.generation == generation.number and p.left < generation.number for p in members
        ):
            for process in members:
                if process.joined < generation.number:
                    process.joined = generation.number
                    self.tell(process.number, Joined(generation.number))
                    if self.is_elastic:
                        self.tell(process.number, Enrolled(["torch"]))
        elif is_broken:
            for process in members:
                if process.is_alive and process.joined == generation.number > process.left:
                    self.leave(process, "lost its peer rank 0")
                elif process.is_alive and not process.joined and not self.is_elastic:
                    self.die(process, 1, lost_peer=True)

    def leave(self, process, reason):
        if not self.is_elastic:
            self.die(process, 1, lost_peer=True)
            return
        process.left = process.generation
        self.tell(process.number, Waiting(process.generation, reason))

    def has_joined(self):
        """Whether all ranks of the present generation have met."""
        members = [
            self.processes[member.process] for generation in self.generations[-1:] for member in generation.members
        ]
        return bool(members) and all(p.joined == p.generation == len(self.generations) for p in members)

    def finish(self):
        """Have all members of the present generation end well."""
        for member in self.generations[-1].members:
            process = self.processes[member.process]
            if self.is_elastic:
                self.tell(process.number, Finished())
            self.die(process, 0)

    # --- actions

    def do(self, todo):
        for action in todo:
            match action:
                case actions.ConnectHosts(hosts):
                    for host in sorted(hosts - self.agents):
                        if any(isinstance(word, HostReady) for word in self.unsaid.get(host, ())):
                            continue  # it is still being connected to
                        if host in self.down:
                            self.say(host, HostRefused(host, "no route"))
                        else:
                            self.agents.add(host)
                            self.say(host, HostReady(host))
                case actions.BeginGeneration(generation, start):
                    self.begin(generation, start)
                case actions.StartNewcomers(expected, numbers):
                    self.check_generation(expected)
                    for member in expected.members:
                        if member.process in numbers:
                            self.start(member, member.process in self.processes)
                            self.tell(member.process, Waiting(0))
                case actions.StartSpares(hosts, modules):
                    assert modules == ("torch",)
                    for number, host in hosts.items():
                        self.add(Simulated(number, host, None, is_spare=True))
                        self.tell(number, Warm())
                case actions.PrepareMembers(number, numbers):
                    assert number == self.generations[-1].number
                    for process in map(self.processes.get, numbers):
                        if process.is_alive and process.left < number:
                            self.leave(process, action.reason)
                case actions.EndProcesses(numbers, _):
                    for process in map(self.processes.get, numbers):
                        self.die(process, -15)
                case SignalRanks():
                    for process in self.alive():
                        self.die(process, -action.signum)
                case TellDeparture():
                    for process in self.alive():
                        if max(process.joined, process.left) < process.generation:
                            self.leave(process, "rank 0 exited with code 0")
                case actions.ReleaseHost(host):
                    assert not [p for p in self.alive() if p.host == host]
                    self.agents.discard(host)
                    self.say(host, AgentGone(host, 0))
                case FinishAgents() | KillAgents():
                    for process in self.alive():
                        process.is_alive = False
                    for host in sorted(self.agents):
                        self.say(host, AgentGone(host, 0))
                    self.agents.clear()
                case CleanUpAfter(host):
                    self.say(host, HostCleaned(host, host not in self.down))
                case actions.Say(text):
                    assert "None" not in text
                    self.said.append(text)
                case _:
                    raise AssertionError(action)

    def add(self, process):
        assert process.number not in self.processes
        self.processes[process.number] = process
        if process.host in self.agents:
            self.say(f"process {process.number}", RankStarted(process.number, 1000 + process.number))
        else:  # its loss is not heard of yet
            process.is_alive = False

    def start(self, member, is_spare):
        occupied = [p for p in self.alive() if (p.host, p.slot) == (member.host, member.slot)]
        assert not occupied, "two processes in one slot"
        if is_spare:
            spare = self.processes[member.process]
            assert spare.is_spare
            assert spare.host == member.host
            spare.is_spare, spare.slot = False, member.slot
        else:
            self.add(Simulated(member.process, member.host, member.slot))

    def check_generation(self, generation):
        members = generation.members
        assert [member.rank for member in members] == list(range(len(members)))
        assert len({member.process for member in members}) == len(members)
        assert len({(member.host, member.slot) for member in members}) == len(members)
        assert generation.number == len(self.generations) + 1

    def begin(self, generation, start):
        self.check_generation(generation)
        assert self.options.min_np <= len(generation.members) <= self.options.max_np
        now_in = {member.process: member.rank for member in generation.members}
        if self.generations:
            before = {member.process: member.rank for member in self.generations[-1].members}
            for number in before.keys() - now_in.keys():
                process = self.processes[number]
                assert not process.is_alive or process.left == process.generation, "two generations live"
            survivors = {process: rank for process, rank in before.items() if process in now_in}
            if survivors:
                lowest = min(survivors, key=survivors.get)
                assert now_in[lowest] == 0, "the lowest survivor is not rank 0"
                for process, rank in survivors.items():
                    assert process == lowest or rank >= len(now_in) or now_in[process] == rank
        self.generations.append(generation)
        for member in generation.members:
            if member.process in start:
                self.start(member, member.process in self.processes)
            process = self.processes[member.process]
            assert (process.host, process.slot) == (member.host, member.slot)
            process.generation = generation.number
