"""Ranks of a host meet, exchange what they share, and let no intruder in or stop them."""

from __future__ import annotations

import os
import secrets
import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from in_process.calls import DEADLINE, started

from distrun.errors import BootstrapError
from distrun.runtime.transport.rendezvous import within_host
from distrun.runtime.transport.rendezvous.within_host import (
    LocalRendezvous,
    PeerInfo,
    own_peer_info,
    rendezvous_within_host,
)
from distrun.runtime.transport.shared_memory.segment import segment_size

KEY = bytes(range(32))


def client_of(name: str, key: bytes | None, rank: int, size: int, timeout: float = DEADLINE) -> Future[list[PeerInfo]]:
    """Start one rank's part of the rendezvous."""
    return started(rendezvous_within_host, name, key, rank, size, timeout)


@pytest.fixture
def name() -> Iterator[str]:
    """A name for a rendezvous; afterwards no descriptor and no socket of it is left."""
    before = len(os.listdir("/proc/self/fd"))
    yield secrets.token_hex(8)
    assert len(os.listdir("/proc/self/fd")) == before, "descriptors are left open"


def address_of(name: str, key: bytes | None = KEY) -> bytes:
    return LocalRendezvous(name, key).address()


def is_open(name: str, key: bytes | None = KEY) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        return probe.connect_ex(address_of(name, key)) == 0


def close(joined: list[list[PeerInfo]]) -> None:
    for peers in joined:
        for peer_info in peers:
            peer_info.close()


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("key", [KEY, None])
def test_all_ranks_get_the_descriptors_of_all_whatever_the_order_of_arrival(name, size, key):
    clients = [client_of(name, key, rank, size) for rank in reversed(range(size))]
    met = [client.result(2 * DEADLINE) for client in clients]
    for peers in met:
        assert [peer_info.pid for peer_info in peers] == [os.getpid()] * size
        assert all(os.fstat(peer_info.segment).st_size == segment_size(size) for peer_info in peers)
    for rank in range(size):  # all hold the same files, each under its own descriptor
        assert len({os.fstat(peers[rank].segment).st_ino for peers in met}) == 1
        assert len({peers[rank].segment for peers in met}) == size
        os.eventfd_write(met[0][rank].bell, 1)
        for peers in met:
            assert select.select([peers[rank].bell], [], [], 0)[0]
    assert len({os.fstat(peer_info.segment).st_ino for peer_info in met[0]}) == size
    assert not is_open(name, key)
    close(met)


def test_a_single_rank_has_no_peers_to_meet(name):
    (mine,) = rendezvous_within_host(name, KEY, 0, 1, DEADLINE)
    assert mine.pid == os.getpid()
    mine.close()


def test_descriptors_are_not_inherited(name):
    mine = own_peer_info(2)
    assert not any(os.get_inheritable(fd) for fd in mine.descriptors)
    mine.close()


def test_names_follow_from_the_key(name):
    assert len({address_of(name, key) for key in (KEY, KEY[::-1], None)}) == 3


def let_names_be_without_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes with different keys find each other."""
    address = LocalRendezvous.address
    monkeypatch.setattr(LocalRendezvous, "address", lambda rendezvous: address(LocalRendezvous(rendezvous.name, None)))


def test_a_process_with_another_key_is_not_let_in_and_the_rendezvous_goes_on(name, monkeypatch):
    let_names_be_without_key(monkeypatch)
    server = client_of(name, KEY, 0, 2)
    with pytest.raises(BootstrapError):
        client_of(name, KEY[::-1], 1, 2, 5.0).result(2 * DEADLINE)
    with pytest.raises(BootstrapError):
        client_of(name, None, 1, 2, 5.0).result(2 * DEADLINE)
    client = client_of(name, KEY, 1, 2)
    close([server.result(2 * DEADLINE), client.result(2 * DEADLINE)])


def test_a_server_that_does_not_know_the_key_is_not_believed(name, monkeypatch):
    let_names_be_without_key(monkeypatch)
    server = client_of(name, KEY[::-1], 0, 2, 0.5)
    client = client_of(name, KEY, 1, 2, 0.5)
    for one in (server, client):
        with pytest.raises(BootstrapError):
            one.result(2 * DEADLINE)


@pytest.mark.parametrize("junk", [b"", b"x", b"GET / HTTP/1.1\r\n\r\n", bytes(64), bytes(32), b"\xff" * 60_000])
def test_an_intruder_that_talks_nonsense_delays_no_rank(name, junk):
    server = client_of(name, KEY, 0, 2)
    intruder = knock(name)
    if junk:
        intruder.send(junk)
    else:
        intruder.close()
    client = client_of(name, KEY, 1, 2)
    close([server.result(2 * DEADLINE), client.result(2 * DEADLINE)])
    intruder.close()


def test_an_intruder_that_says_nothing_delays_no_rank(name, monkeypatch):
    receive, limits = within_host._receive_client, iter((0.3, DEADLINE))  # of the intruder, and of the rank after it

    def receive_client(*arguments: Any) -> tuple[int, PeerInfo]:
        monkeypatch.setattr(within_host, "_HANDSHAKE_TIMEOUT", next(limits))
        return receive(*arguments)

    monkeypatch.setattr(within_host, "_receive_client", receive_client)
    server = client_of(name, KEY, 0, 2)
    intruder = knock(name)
    client = client_of(name, KEY, 1, 2)
    close([server.result(2 * DEADLINE), client.result(2 * DEADLINE)])
    intruder.close()


def knock(name: str) -> socket.socket:
    """Connect like a client as soon as somebody listens."""
    deadline = time.monotonic() + DEADLINE
    intruder = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while intruder.connect_ex(address_of(name)) != 0:
        assert time.monotonic() < deadline, "nobody listens"
        select.select([], [], [], 0.001)
    return intruder


def test_a_rank_that_dies_during_the_rendezvous_may_come_again(name):
    """As when a launcher restarts it: the first one's place is taken by the second."""
    server = client_of(name, KEY, 0, 3)
    knock(name).close()
    clients = [client_of(name, KEY, rank, 3) for rank in (2, 1)]
    close([server.result(2 * DEADLINE), *[client.result(2 * DEADLINE) for client in clients]])


def let_time_end_after(monkeypatch: pytest.MonkeyPatch, step: str, seconds: float = 0.2) -> list[Any]:
    """Let the time of a rank end so long after a step of it; return the deadlines of the ranks that have made it."""
    work, deadlines = getattr(within_host, step), []

    def made(*arguments: Any) -> Any:
        done = work(*arguments)
        deadlines.append(arguments[-1])
        deadlines[-1]._time = time.monotonic() + seconds
        return done

    monkeypatch.setattr(within_host, step, made)
    return deadlines


def test_the_server_tells_in_time_which_ranks_did_not_come(name, monkeypatch):
    let_time_end_after(monkeypatch, "_receive_client")
    server = client_of(name, KEY, 0, 4)
    client = client_of(name, KEY, 2, 4)
    with pytest.raises(
        BootstrapError, match=r"ranks \[1, 3\] of 4 did not call init\(\) within 60 s: .*--start-timeout"
    ):
        server.result(2 * DEADLINE)
    with pytest.raises(BootstrapError, match="ended while the ranks of this host were meeting"):
        client.result(2 * DEADLINE)
    assert not is_open(name)


def test_a_client_tells_in_time_that_there_is_no_server(name):
    with pytest.raises(BootstrapError, match=r"rank 0 did not call init\(\) within 0.2 s"):
        rendezvous_within_host(name, KEY, 1, 2, 0.2)


def test_a_client_tells_in_time_that_others_are_missing(name, monkeypatch):
    let_time_end_after(monkeypatch, "_authenticate")
    deadlines = let_time_end_after(monkeypatch, "_receive_client", DEADLINE)
    server = client_of(name, KEY, 0, 3)
    client = client_of(name, KEY, 1, 3)
    with pytest.raises(BootstrapError, match=r"met .*rank 0, but some rank of this host did not come within 60 s"):
        client.result(2 * DEADLINE)
    while not deadlines:
        assert not server.done()
    deadlines[0]._time = time.monotonic()
    is_open(name)  # which wakes it, if it waits already
    with pytest.raises(BootstrapError):
        server.result(2 * DEADLINE)


def test_two_servers_of_one_name_are_one_too_many(name):
    server = client_of(name, KEY, 0, 2)
    knock(name).close()
    with pytest.raises(BootstrapError, match="cannot listen"):
        rendezvous_within_host(name, KEY, 0, 2, 5.0)
    client = client_of(name, KEY, 1, 2)
    close([server.result(2 * DEADLINE), client.result(2 * DEADLINE)])


def test_rendezvous_of_different_names_do_not_disturb_each_other(name):
    clients = [client_of(f"{name}{job}", KEY, rank, 2) for rank in range(2) for job in range(3)]
    met = [client.result(2 * DEADLINE) for client in clients]
    for job in range(3):
        host, client = met[job], met[3 + job]
        assert [os.fstat(one.segment).st_ino for one in host] == [os.fstat(one.segment).st_ino for one in client]
    close(met)
