"""A simulator of a host's failure: how the news of it reaches all ranks of the other hosts.

Who has connections with whom is told by the control tree, and what a rank does with what it hears by the real
`Network`, whose channels are simulated: the ends of connections come after the latency of the link, or, where the host
is silent, after the keepalives of the alarms. A leader that hears of a failure tells those above and below it, and
wakes the ranks of its host.
"""

from __future__ import annotations

import heapq
import itertools
import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.scale.machine import Machine
from benchmarks.scale.real import hosts_of
from benchmarks.scale.start import members
from distrun.host.connections.tcp_options import DEAD_HOST_TIMEOUT, set_tcp_options
from distrun.runtime.backends.rail import first_partners
from distrun.runtime.transport import network as transport
from distrun.runtime.transport.control.control_tree import control_tree
from distrun.runtime.transport.data_connections import needed
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.shared_memory.segment import FAILED


@dataclass(frozen=True)
class News:
    """When the ranks of the other hosts know of the failure of one, in seconds after it."""

    first: float
    last: float
    directly: int
    """The ranks that see the end of a connection for messages."""
    by_data: int
    """The ranks that see the end of a connection for arrays, of those that are made at the start; if they wait for
    something on it, they would believe it after another half second without other news."""


def failure(hosts: int, ranks: int, victim: int, machine: Machine, is_silent: bool, fan_out: int = 0) -> News:
    """Return how the news spread when the host `victim` fails.

    Args:
        hosts: their number.
        ranks: those of each.
        victim: the number of the host; not 0, with which the job ends.
        machine: the hosts.
        is_silent: whether the host falls silent, rather than that its connections end.
        fan_out: that of the control tree; 0: the job's own choice.
    """
    return _Failure(hosts, ranks, machine, fan_out).run(victim, is_silent)


def keepalive_seconds(may_be_unread: bool = False) -> tuple[float, float]:
    """Return the least and the most seconds until a connection on which nothing is sent ends because its host is
    silent, by the options that distrun sets: those of alarms, or of other connections (`may_be_unread`).

    A keepalive may just have been answered, or the next one be due. Linux gives up when as many as were set are
    unanswered, or, where a user timeout is set, with the first one after that.
    """
    options: dict[int, int] = {}
    connection: Any = SimpleNamespace(setsockopt=lambda _, option, value: options.update({option: value}))
    set_tcp_options(connection, DEAD_HOST_TIMEOUT, may_be_unread)
    first, interval = options[socket.TCP_KEEPIDLE], options[socket.TCP_KEEPINTVL]
    user_timeout = options[socket.TCP_USER_TIMEOUT] / 1000
    count = math.ceil((user_timeout - first) / interval) if user_timeout else options[socket.TCP_KEEPCNT]
    return count * interval, first + count * interval


class _Failure:
    def __init__(self, hosts: int, ranks: int, machine: Machine, fan_out: int) -> None:
        self.machine = machine
        self.now = 0.0
        self._hosts = hosts_of((ranks,) * hosts)
        self._fan_out = fan_out
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._knowing: dict[int, float] = {}
        everybody = members(hosts, ranks)
        fakes: dict[str, Any] = {"ConnectionSet": _ConnectionSet, "Channel": _Channel, "set_tcp_options": _nothing}
        with mock.patch.multiple(transport, select=SimpleNamespace(epoll=_ConnectionSet), **fakes):
            self.networks = {
                rank: transport.Network(rank, everybody, self._lines(rank), {})
                for local_ranks in self._hosts
                for rank in local_ranks
            }

    def _lines(self, rank: int) -> dict[int, Any]:
        """Return what stands for the sockets between a rank and those with which it has connections for messages."""
        tree = control_tree(self._hosts, rank, self._fan_out)
        if tree is not None:
            peers = [*tree.children, *([] if tree.parent is None else [tree.parent])]
        elif rank in self._hosts[0]:
            peers = [] if rank else [each for local_ranks in self._hosts[1:] for each in local_ranks]
        else:
            peers = [0]
        return {peer: _Line(self, rank, peer) for peer in peers}

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Have something done at a time."""
        heapq.heappush(self._events, (when, next(self._order), do))

    def run(self, victim: int, is_silent: bool) -> News:
        gone = self._hosts[victim]
        begun = keepalive_seconds()[1] if is_silent else self.machine.latency
        direct = {peer for rank in gone for peer in self.networks[rank]._channels}
        for peer in sorted(direct):
            self.at(begun + self.machine.wake, partial(self._end, peer, gone))
        for rank in gone:
            del self.networks[rank]
        while self._events:
            self.now, _, do = heapq.heappop(self._events)
            do()
        assert self._knowing.keys() == self.networks.keys(), "a rank was not told"
        return News(min(self._knowing.values()), max(self._knowing.values()), len(direct), self._by_data(victim))

    def _end(self, rank: int, gone: tuple[int, ...]) -> None:
        network = self.networks[rank]
        for peer in gone:
            if peer in network._channels:
                network._on_close(peer, "its connection was closed")
        self.look(rank)

    def look(self, rank: int) -> None:
        """Have a rank notice that the job has failed, and tell others, as its engine does when it looks."""
        if rank in self._knowing or self.networks[rank].failure is None:
            return
        self._knowing[rank] = self.now
        network = self.networks[rank]
        network.announce(FAILED)
        heard = self.now + 2 * self.machine.system_call * len(network.peers) + self.machine.wake
        for other in HostLayout(self._hosts, rank).local_ranks:
            if other not in self._knowing:
                self.at(heard, partial(self._hear, other))

    def _hear(self, rank: int) -> None:
        """A rank of the same host has failed."""
        self.networks[rank]._fail("")
        self.look(rank)

    def _by_data(self, victim: int) -> int:
        layout = HostLayout(self._hosts, self._hosts[victim][0])
        return len(needed(layout.peers, first_partners(layout))) * len(self._hosts[victim])


class _Line:
    """A connection for messages, as one end sees it."""

    def __init__(self, failure: _Failure, rank: int, peer: int) -> None:
        self.failure, self.rank, self.peer = failure, rank, peer


class _Channel:
    def __init__(self, connections: _ConnectionSet, line: _Line, *_: Any) -> None:
        self._line = line

    def send(self, message: bytes) -> None:
        """Have a message come, which wakes its receiver."""
        failure, line = self._line.failure, self._line
        machine = failure.machine
        network = failure.networks[line.rank]
        place = 1 + list(network._channels).index(line.peer)  # it and its alarm leave behind those of others
        when = failure.now + 2 * place * machine.system_call + machine.latency + machine.wake

        def come() -> None:
            other = failure.networks.get(line.peer)
            if other is not None:
                other._on_message(line.rank, message)
                failure.look(line.peer)

        failure.at(when, come)


class _ConnectionSet:
    def fileno(self) -> int:
        return -1

    fd = -1

    def progress(self) -> None: ...


def _nothing(*_: Any, **__: Any) -> None: ...
