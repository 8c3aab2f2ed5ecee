"""A simulator of the control plane: the negotiation's real code on ranks, links and clocks that are simulated.

Each rank is a `Negotiator` with a control plane of its own, as in a real job; mailboxes and connections are queues. A
message arrives after the latency of its way, and the bytes before it on the wire of its host. What a rank computes is
executed and timed here, one rank after the other, and takes that time on the simulated core on which it runs; a host
has so many cores, and ranks wait for a free one. To be woken takes a rank some time. Nothing of an operation is
executed: it ends when it is decided.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.scale.machine import PER_PACKET, Machine
from distrun.contract.settings import REQUESTS
from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.negotiation.negotiator import Negotiator
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.negotiation.tree.control_plane import control_plane, controller_of
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request
from distrun.runtime.operations.timeouts import FOREVER
from distrun.runtime.transport.control import control_plane as transport
from distrun.runtime.transport.control.control_tree import ControlTree


class Simulation:
    """A job."""

    def __init__(self, hosts: tuple[tuple[int, ...], ...], fan_out: int, machine: Machine) -> None:
        """`hosts`: the ranks of each host; `fan_out`: that of the control tree."""
        self.machine = machine
        self.size = sum(map(len, hosts))
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._cores = {host: [0.0] * machine.cores for host in range(len(hosts))}
        self._wires = dict.fromkeys(range(len(hosts)), 0.0)
        self.requests = [Request("allreduce", f"gradient.{number}", "float32", ((1000,),)) for number in range(4)]
        self.ranks: dict[int, _Rank] = {}
        with mock.patch.object(transport, "Mailbox", _Mailbox):
            for number, ranks in enumerate(hosts):
                segments: list[dict[int, deque[bytes]]] = [{} for _ in ranks]
                for rank in ranks:
                    self.ranks[rank] = _Rank(self, ControlTree(hosts, rank, fan_out), number, segments)

    def share_cores(self) -> None:
        """Let all hosts have the same cores: they are one machine."""
        self._cores = dict.fromkeys(self._cores, self._cores[0])

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Have something done at a time."""
        heapq.heappush(self._events, (when, next(self._order), do))

    def run(self) -> None:
        """Go on until nothing is to be done."""
        gc.disable()  # it would go through the objects of all ranks, and count as the time of one
        while self._events:
            self.now, _, do = heapq.heappop(self._events)
            do()
        gc.enable()

    def core(self, host: int, wanted: float) -> tuple[list[float], int, float]:
        """Return the cores of a host, the first that is free, and when it is, if that is wanted at a time."""
        cores = self._cores[host]
        first = min(range(len(cores)), key=cores.__getitem__)
        return cores, first, max(wanted, cores[first])

    def arrival(self, host: int, sent: float, nbytes: int) -> float:
        """Return when a message is there that a host sends to another one."""
        begun = max(sent, self._wires[host])
        self._wires[host] = ended = begun + (nbytes + PER_PACKET) / self.machine.rate
        return ended + self.machine.latency

    def operation(self, request: Request) -> float:
        """Have all ranks submit an operation at once; return the seconds until the last one has the decision."""
        begun = self.now
        for rank in self.ranks.values():
            rank.submit(request, begun)
        self.run()
        ended = max(rank.decided for rank in self.ranks.values())
        self.now = ended
        for rank in self.ranks.values():
            assert rank.operations.is_empty, "an operation was not decided"
            rank.free = ended
        for cores in self._cores.values():
            cores[:] = [ended] * len(cores)
        return ended - begun


class _Rank:
    def __init__(
        self, simulation: Simulation, tree: ControlTree, host: int, segments: list[dict[int, deque[bytes]]]
    ) -> None:
        self._simulation = simulation
        self._host = host
        self.number = tree.rank
        self.free = self.decided = 0.0
        self.messages = self.nbytes = 0
        self._is_due = False
        self._began = self._clock = 0.0
        self.peers = len(tree.children) + (tree.parent is not None)
        ranks, own = tree.local_ranks, tree.local_ranks.index(tree.rank)
        network = _Network(self)
        bells = [_Bell(self, rank) for rank in ranks]
        group: Any = SimpleNamespace(
            ranks=ranks, own=own, segments=segments, mine=segments[own], bells=bells, service_bells=bells
        )
        group.others = [index for index in range(len(ranks)) if index != own]
        group.network = network
        self.network = network
        self.operations = PendingOperations(0)
        members = {0: range(simulation.size)}
        controller: Controller | None = None if tree.rank else controller_of(tree, members, REQUESTS)
        self._negotiator = Negotiator(
            *(tree.rank, simulation.size, control_plane(group, tree), self.operations, controller, None, FOREVER),
            *(str, {0: range(simulation.size)}, lambda: simulation.now),
        )

    def submit(self, request: Request, when: float) -> None:
        """Submit an operation."""
        self.operations.enter(Handle(None, request, ()))  # type: ignore[arg-type]
        self.wake(when)

    def wake(self, when: float) -> None:
        """Look for messages from a time on."""
        if not self._is_due:
            self._is_due = True
            self._simulation.at(when, self._run)

    def _run(self) -> None:
        simulation = self._simulation
        cores, core, free = simulation.core(self._host, max(simulation.now, self.free))
        if free > simulation.now:
            simulation.at(free, self._run)
            return
        self._is_due = False
        self._began = simulation.now + len(self.network.inbox) * simulation.machine.system_call
        self._clock = time.thread_time()
        self._negotiator.next_look(0.0)  # tries again what a mailbox did not take
        self._negotiator.progress()
        self.free = cores[core] = self.moment()
        if self.operations.decided:
            self.operations.decided.clear()
            self.decided = self.free
        if self._negotiator.has_news():
            self.wake(self.free)

    def moment(self) -> float:
        """The simulated time at this point of what the rank computes."""
        return self._began + time.thread_time() - self._clock

    def ring(self, rank: int) -> None:
        """Wake a rank of this host."""
        other = self._simulation.ranks.get(rank)
        if other is not None and other is not self:
            when = self.moment() + self._simulation.machine.wake
            self._simulation.at(when, lambda: other.wake(when))

    def send(self, rank: int, message: bytes) -> None:
        """Send a message to a rank of another host."""
        simulation = self._simulation
        self.messages += 1
        self.nbytes += len(message)
        self._began += simulation.machine.system_call
        when = simulation.arrival(self._host, self.moment(), len(message)) + simulation.machine.wake
        simulation.at(when, lambda: simulation.ranks[rank].receive(self.number, message, when))

    def receive(self, rank: int, message: bytes, when: float) -> None:
        """A message of a rank of another host has come."""
        self.network.inbox.append((rank, message))
        self.wake(when)


class _Mailbox:
    def __init__(self, segment: dict[int, deque[bytes]], index: int) -> None:
        self._messages = segment.setdefault(index, deque())

    def put(self, message: bytes) -> bool:
        self._messages.append(message)
        return True

    def get(self) -> bytes | None:
        return self._messages.popleft() if self._messages else None

    def __bool__(self) -> bool:
        return bool(self._messages)


class _Bell:
    def __init__(self, ringer: _Rank, rank: int) -> None:
        self._ringer = ringer
        self._rank = rank

    def ring(self) -> None:
        self._ringer.ring(self._rank)

    force = ring


class _Network:
    is_sending = is_over = False
    failure = None

    def __init__(self, rank: _Rank) -> None:
        self._rank = rank
        self.inbox: deque[tuple[int, bytes]] = deque()

    def send(self, rank: int, message: bytes) -> None:
        self._rank.send(rank, message)

    def alarm(self, rank: int) -> None:
        """Every message wakes its rank here."""

    def progress(self) -> None:
        """Messages come by themselves."""


def latencies(simulation: Simulation, operations: int) -> Iterator[float]:
    """Yield the seconds of operations that all ranks repeat."""
    for request in simulation.requests:
        simulation.operation(request)  # in full, for the first time
    for number in range(operations):
        yield simulation.operation(simulation.requests[number % len(simulation.requests)])
