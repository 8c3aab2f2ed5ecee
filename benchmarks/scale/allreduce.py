"""A simulator of the data: what hosts do in an allreduce (see `traces`), on simulated links and clocks.

A host has a link in each direction, for which messages queue at both ends, and each of its ranks a core, which takes
some time for each message, for its bytes, and for what it adds up. One rail is simulated, with its share of the array
and of the link: all rails of a host do the same at the same time. Where all hosts do the same, each at its place, one
host is simulated, which receives when it sends.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Mapping

from benchmarks.scale.machine import PER_PACKET, Machine
from benchmarks.scale.traces import COMPUTE, FLOAT, SEND, Trace, trace
from distrun.runtime.backends.algorithms.choice import SHARED_FROM, WHOLE
from distrun.runtime.backends.algorithms.direct import Direct
from distrun.runtime.backends.algorithms.halving_doubling import HalvingDoubling
from distrun.runtime.backends.algorithms.ring import Ring

PACKET = 1448
"""Bytes of a message that travel in one packet."""


def mirror(name: str, hosts: int) -> Callable[[int], int] | None:
    """Return which host sends to host 0 what host 0 sends to another one, if all hosts do the same; else None."""
    if name == HalvingDoubling.name and hosts & (hosts - 1) == 0:
        return lambda host: host
    return (lambda host: -host % hosts) if name in (WHOLE, Direct.name, Ring.name) else None


def rails(name: str, nbytes: int, ranks: int) -> int:
    """Return how many of a host's ranks move an array."""
    return ranks if name != WHOLE or nbytes >= SHARED_FROM else 1


def traces_of(name: str, hosts: int, nbytes: int, ranks: int) -> dict[int, Trace]:
    """Return what hosts with so many ranks do to reduce an array of `nbytes` per rank, each for one of its rails; of
    host 0 alone where all do the same."""
    elements = -(-nbytes // FLOAT.itemsize // rails(name, nbytes, ranks))
    has_mirror = mirror(name, hosts) is not None
    if has_mirror and name != WHOLE:  # all parts are to have the same size
        elements = -(-elements // hosts) * hosts
    return {own: trace(name, hosts, elements, ranks, own) for own in range(1 if has_mirror else hosts)}


def seconds(name: str, hosts: int, nbytes: int, ranks: int, machine: Machine) -> float:
    """Return the time of an allreduce of `nbytes` per rank between equal hosts, from its start on all."""
    traces = traces_of(name, hosts, nbytes, ranks)
    rate = machine.rate / rails(name, nbytes, ranks)
    return replay(traces, machine, dict.fromkeys(traces, rate), mirror(name, hosts))


def seconds_with_slow(name: str, hosts: int, nbytes: int, ranks: int, machine: Machine, slow: float) -> float:
    """Return the time of an allreduce where the link of the last host is `slow` times as slow, which all know."""
    last = frozenset({hosts - 1})
    traces = {own: trace(name, hosts, nbytes // FLOAT.itemsize // ranks, ranks, own, last) for own in range(hosts)}
    rates = dict.fromkeys(traces, machine.rate / ranks)
    rates[hosts - 1] /= slow
    return replay(traces, machine, rates)


def replay(
    traces: Mapping[int, Trace],
    machine: Machine,
    rates: Mapping[int, float],
    symmetry: Callable[[int], int] | None = None,
) -> float:
    """Return the seconds until the last host has done all that its trace says.

    Args:
        traces: those of all hosts; of host 0 alone where all do the same.
        machine: the hosts.
        rates: the bytes per second of each host's link.
        symmetry: see `mirror`.
    """
    return _Replay(traces, machine, rates, symmetry).run()


class _Replay:
    def __init__(
        self,
        traces: Mapping[int, Trace],
        machine: Machine,
        rates: Mapping[int, float],
        symmetry: Callable[[int], int] | None,
    ) -> None:
        self._machine = machine
        self._rates = rates
        self._symmetry = symmetry
        self._steps = {host: iter(traced.steps) for host, traced in traces.items()}
        self._clocks = dict.fromkeys(traces, 0.0)
        self._outgoing, self._incoming = dict.fromkeys(traces, 0.0), dict.fromkeys(traces, 0.0)
        self._sent: Counter[tuple[int, int]] = Counter()
        self._arrived: dict[int, dict[tuple[int, int], float]] = {host: {} for host in traces}
        self._awaited: dict[int, list[tuple[int, int, int]]] = {}
        self._missing = dict.fromkeys(traces, 0)
        self._events: list[tuple[float, int, int, tuple[int, int], float, float]] = []
        self._order = itertools.count()

    def run(self) -> float:
        for host in self._clocks:
            self._go_on(host)
        while self._events:
            begun, _, host, key, wire_bytes, ended = heapq.heappop(self._events)
            # A message comes in as it leaves, unless others come in at the same time, or this link is slower.
            free = max(begun, self._incoming[host])
            self._incoming[host] = self._arrived[host][key] = max(free + wire_bytes / self._rates[host], ended)
            if host in self._awaited and any(key == (other, number) for other, number, _ in self._awaited[host]):
                self._missing[host] -= 1
                if not self._missing[host]:
                    self._receive(host)
                    self._go_on(host)
        assert not self._awaited, "hosts wait for messages that nobody sends"
        return max(self._clocks.values())

    def _go_on(self, host: int) -> None:
        machine = self._machine
        for kind, what, amount in self._steps[host]:
            if kind == SEND:
                self._send(host, what, amount)
            elif kind == COMPUTE:
                self._clocks[host] += amount / machine.memory
            else:
                arrived = self._arrived[host]
                self._awaited[host] = what
                self._missing[host] = sum((other, number) not in arrived for other, number, _ in what)
                if self._missing[host]:
                    return
                self._receive(host)

    def _send(self, host: int, to: int, nbytes: float) -> None:
        machine, wire_bytes = self._machine, nbytes + PER_PACKET * -(-nbytes // PACKET)
        begun = max(self._clocks[host] + machine.system_call, self._outgoing[host])
        self._clocks[host] += machine.system_call + nbytes / machine.copying
        self._outgoing[host] = ended = max(begun + wire_bytes / self._rates[host], self._clocks[host])
        self._sent[host, to] += 1
        receiver, sender = (to, host) if self._symmetry is None else (host, self._symmetry(to))
        key = sender, self._sent[host, to]
        event = begun + machine.latency, next(self._order), receiver, key, wire_bytes, ended + machine.latency
        heapq.heappush(self._events, event)

    def _receive(self, host: int) -> None:
        machine, arrived, clock = self._machine, self._arrived[host], self._clocks[host]
        awaited = self._awaited.pop(host)
        comings = sorted((arrived.pop((other, number)), nbytes) for other, number, nbytes in awaited)
        if comings[-1][0] > clock:
            clock += 0.0 if comings[0][0] <= clock else machine.wake
        for arrival, nbytes in comings:  # it takes bytes while others come
            clock = max(clock + nbytes / machine.copying, arrival) + machine.system_call
        self._clocks[host] = clock
