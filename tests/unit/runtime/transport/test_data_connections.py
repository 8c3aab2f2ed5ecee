"""Data connections: two ranks of different hosts share one, whichever needs it first, and no wait is in vain."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from in_process.calls import at_once
from in_process.connected_ranks import MEMBERS
from in_process.hosts_of_threads import reductions_for_threads as reductions_for_threads

from distrun.errors import BootstrapError
from distrun.host.connections import listener
from distrun.host.connections.listener import Listener, listen, listen_at
from distrun.runtime.backends.rail import Rail, first_partners
from distrun.runtime.operations.dtypes import ELEMENT_TYPES
from distrun.runtime.operations.reduction import Reduction, Sum
from distrun.runtime.transport import data_connections
from distrun.runtime.transport.data_connections import DataConnections
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.network import Network
from distrun.runtime.transport.rendezvous.protocol import Member

KEY = bytes(32)
DEADLINE = 60.0


class LocalGroup:
    """The only rank of its host."""

    stop_reason: str | None = None
    lost: str | None = None

    def lost_rank(self) -> str | None:
        return self.lost

    def wait(self, ready: Callable[[], bool], what: Callable[[], str]) -> None:
        while not ready():
            pass


class Job:
    """Three ranks on three hosts, which are threads. None of them is connected with another by data yet."""

    def __init__(self, networks: Sequence[Network], timeout: float = DEADLINE) -> None:
        self.networks = networks
        self.local_groups = [LocalGroup() for _ in range(3)]
        self.connections = [self._connections(rank, timeout) for rank in range(3)]
        self._ports: list[int] = [0] * 3
        self._barrier = threading.Barrier(3)

    def _connections(self, rank: int, timeout: float) -> DataConnections:
        listening = Listener([listen("127.0.0.1")], KEY)
        rendezvous: Any = SimpleNamespace(members=MEMBERS, key=KEY, listener=listening, is_encrypted=False)
        layout, local_group = HostLayout.of("abc", rank), self.local_groups[rank]
        made = DataConnections(rendezvous, layout, self.networks[rank], local_group, timeout)
        listening.close()
        return made

    def tell(self, rank: int, port: int) -> list[int]:
        self._ports[rank] = port
        self._barrier.wait(DEADLINE)
        ports = list(self._ports)
        self._barrier.wait(DEADLINE)
        return ports

    def add(self, *ranks: int) -> dict[int, Any]:
        """Make the links of a set; by rank."""

        def make(rank: int) -> Any:
            if rank not in ranks:
                return self.tell(rank, 0)
            peers = {host: peer for host, peer in enumerate(ranks) if peer != rank}
            local: Any = self.local_groups[rank]
            return self.connections[rank].make(local, peers, peers, partial(self.tell, rank))

        links = at_once(make, range(3))
        return {rank: links[rank] for rank in ranks}

    def streams(self) -> list[list[int]]:
        return [sorted(connections._streams) for connections in self.connections]


def swap(links: dict[int, Any], ranks: Sequence[int]) -> None:
    """Every rank of a set sends its number to every other."""

    def work(rank: int) -> None:
        tickets, got = [], {}
        for host, peer in enumerate(ranks):
            if peer != rank:
                links[rank].send(host, np.full(1000, rank))
                got[peer] = np.empty(1000, int)
                tickets.append(links[rank].receive(host, got[peer]))
        links[rank].wait(tickets, "x")
        links[rank].flush("x")
        assert all((array == peer).all() for peer, array in got.items())

    at_once(work, ranks)


def test_sets_share_the_connections_of_those_before_them(three):
    job = Job(three)
    first = job.add(0, 2)
    assert job.streams() == [[2], [], [0]]
    before = job.connections[0]._streams[2]
    second = job.add(0, 1, 2)
    assert job.streams() == [[1, 2], [0, 2], [0, 1]]
    assert job.connections[0]._streams[2] is before
    third = job.add(1, 2)
    for links, ranks in ((first, (0, 2)), (second, (0, 1, 2)), (third, (1, 2)), (first, (0, 2))):
        swap(links, ranks)


@pytest.mark.usefixtures("reductions_for_threads")
@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling", "direct"])
def test_many_hosts_connect_with_those_that_they_need_when_they_need_them(three, monkeypatch, algorithm):
    monkeypatch.setattr(data_connections, "MANY_HOSTS", 2)
    job = Job(three)
    layouts = [HostLayout.of("abc", rank) for rank in range(3)]

    def work(rank: int) -> np.ndarray[Any, Any]:
        local: Any = job.local_groups[rank]
        peers, first = layouts[rank].peers, first_partners(layouts[rank])
        links = job.connections[rank].make(local, peers, first, partial(job.tell, rank))
        assert sorted(job.connections[rank]._streams) == ([1, 2] if rank == 0 else [0])
        rail = Rail(links, layouts[rank], algorithm)
        array = np.arange(50_000) + rank
        total = Reduction(ELEMENT_TYPES["int64"], Sum, 3, 1.0, 1.0)
        for _ in range(2):
            rail.reduce([array], [array], total, array.nbytes, "it")
        rail.broadcast(array[:100], 2, 800, "it")
        return array

    results = at_once(work, range(3))
    assert all((array == 3 * (3 * np.arange(50_000) + 3)).all() for array in results)
    assert job.streams() == [[1, 2], [0, 2], [0, 1]]  # so few hosts exchange broadcasts directly


def test_strangers_at_the_port_of_a_rank_delay_nobody(three, monkeypatch):
    monkeypatch.setattr(listener, "HANDSHAKE_TIMEOUT", 1000.0)  # waiting for one would take too long
    job, strangers = Job(three), []
    tell = job.tell

    def tell_after_strangers(rank: int, port: int) -> list[int]:
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000) if port else ():
            strangers.append(socket.create_connection(("127.0.0.1", port)))
            strangers[-1].setblocking(False)
            strangers[-1].send(words)
        return tell(rank, port)

    monkeypatch.setattr(job, "tell", tell_after_strangers)
    swap(job.add(0, 1, 2), (0, 1, 2))
    assert len(strangers) == 6  # at the ports of two
    for each in strangers:
        each.close()


def test_nobody_listens_where_all_connections_are_there(three):
    job = Job(three)
    job.add(0, 1)
    job._ports = [-1] * 3
    job.add(0, 1)
    assert job._ports == [0, 0, 0]


def test_a_rank_listens_at_all_its_addresses_with_one_port():
    sockets = listen_at(["127.0.0.1", "127.0.0.2", "127.0.0.3"])
    assert len({each.getsockname()[1] for each in sockets}) == 1
    assert [each.getsockname()[0] for each in sockets] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    for each in sockets:
        each.close()


def test_an_address_that_is_not_ours_any_more_is_a_sentence(three):
    job = Job(three)
    job.connections[0]._addresses = ["192.0.2.1"]
    with pytest.raises(BootstrapError, match=r"^rank 0 cannot listen at 192\.0\.2\.1 for ranks of other hosts: "):
        job.connections[0].make(job.local_groups[0], {1: 1}, (), lambda port: [port])


@pytest.mark.parametrize(("rank", "peer"), [(0, 1), (2, 0)], ids=["accepts", "dials"])
@pytest.mark.parametrize("fate", ["lost", "stop_reason"])
def test_who_waits_for_a_connection_hears_that_the_job_has_failed(three, monkeypatch, rank, peer, fate):
    monkeypatch.setattr(data_connections, "DIAL_INTERVAL", 0.01)
    job = Job(three)
    setattr(job.local_groups[rank], fate, "rank 1 was killed")
    with pytest.raises(
        BootstrapError, match=r"^the ranks of the hosts cannot connect with each other: rank 1 was kill"
    ):
        job.connections[rank].make(job.local_groups[rank], {peer: peer}, (), lambda port: [port or 1, 0, 0])


@pytest.mark.parametrize(
    ("rank", "peer", "sentence"),
    [
        (0, 1, r"^rank 0 waited in vain for a connection from rank 1 .*a firewall may"),
        (2, 0, r"^rank 2 on host host2 .* cannot reach rank 0 on host host0: "),
    ],
)
def test_a_peer_that_does_not_come_or_cannot_be_reached_is_named(three, rank, peer, sentence):
    job = Job(three, timeout=0.05)
    with pytest.raises(BootstrapError, match=sentence):
        job.connections[rank].make(job.local_groups[rank], {peer: peer}, (), lambda port: [port or 1, 0, 0])


def test_rails_take_the_networks_in_turn_that_both_hosts_have():
    ours = Member(5, "a", "a", 1, "10.0.0.1", 1, "10.1.0.1/24,10.2.0.1/24,fd00::1/64")
    theirs = Member(1, "b", "b", 1, "10.0.0.2", 1, "10.2.0.2/24,fd00::2/64")
    ways = [data_connections.way(ours, theirs, rail) for rail in range(4)]
    assert ways[:3] == [("10.0.0.1", "10.0.0.2"), ("10.2.0.1", "10.2.0.2"), ("fd00::1", "fd00::2")]
    assert ways[3] == ways[0]
    assert data_connections.way(ours, Member(0, "b", "b", 1, "10.0.0.2", 1), 2) == ("10.0.0.1", "10.0.0.2")
