"""Connections of a rank that forks: its children neither hold them open nor speak on them."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest

from distrun.runtime.rendezvous.protocol import Member
from distrun.runtime.shared_memory.segment import FAILED, LEFT
from distrun.runtime.transport.connections import Channel, ConnectionSet, Stream
from distrun.runtime.transport.network import Network

DEADLINE = 30.0
MEMBERS = [Member(rank, f"h{rank}", f"host{rank}", 100 + rank, "127.0.0.1", 1) for rank in range(3)]


class End:
    """One end of a connection, in a connection set of its own."""

    def __init__(self, kind: type[Channel | Stream], connection: socket.socket) -> None:
        self.set = ConnectionSet()
        self.messages: list[bytes] = []
        self.reasons: list[str] = []
        if kind is Channel:
            self.it = Channel(self.set, connection, self.messages.append, self.reasons.append)
        else:
            self.it = Stream(self.set, connection, self.reasons.append)

    @property
    def fd(self) -> int:
        return self.set.fd

    def progress(self) -> None:
        self.set.progress()


def pair_of_sockets() -> tuple[socket.socket, socket.socket]:
    """Connected over TCP, where the end of a connection looks different from that of a `socket.socketpair`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return socket.create_connection(server.getsockname()), server.accept()[0]


def turn_until(condition, *ends: End | Network) -> None:
    """Let all ends make progress until something is true."""
    poll = select.poll()
    for end in ends:
        poll.register(end.fd, select.POLLIN)
    until = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < until, "nothing happens any more"
        poll.poll(10)
        for end in ends:
            end.progress()


@pytest.fixture
def children() -> Iterator[list[int]]:
    """Processes that do not outlive the test, though their parent did not collect them."""
    made: list[int] = []
    yield made
    for pid in made:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", [Channel, Stream])
def test_a_child_that_outlives_its_killed_parent_does_not_keep_the_connection_open(kind, children):
    theirs, ours = pair_of_sockets()
    here, there = os.pipe()
    middle = os.fork()
    if middle == 0:  # the rank, which has a child, and is killed
        ours.close()
        end = End(kind, theirs)
        child = os.fork()
        if child == 0:
            end.set.disown()
            os.write(there, struct.pack("<i", os.getpid()))
            signal.pause()
        signal.pause()
    theirs.close()
    children.append(struct.unpack("<i", os.read(here, 4))[0])
    end = End(kind, ours)
    if kind is Stream:
        end.it.receive(np.zeros(3, np.uint8).data)
    end.set.progress()
    assert not end.reasons
    os.kill(middle, signal.SIGKILL)
    os.waitpid(middle, 0)
    turn_until(lambda: end.reasons, end)
    assert end.reasons == ["its connection was closed"]
    end.set.close()
    os.close(here)
    os.close(there)


def test_the_parent_goes_on_while_its_child_has_disowned_the_connections():
    one, other = (End(Channel, connection) for connection in pair_of_sockets())
    child = os.fork()
    if child == 0:
        one.set.disown()
        os._exit(0)
    os.waitpid(child, 0)
    one.it.send(b"hello")
    turn_until(lambda: other.messages, one, other)
    other.it.send(b"hello yourself")
    turn_until(lambda: one.messages, one, other)
    one.set.close()
    other.set.close()
    assert one.reasons == other.reasons == []


@pytest.fixture
def three():
    """Ranks 0, 1 and 2 of three hosts, connected as after the rendezvous."""
    pairs = {(rank, kind): pair_of_sockets() for rank in (1, 2) for kind in ("control", "alarm")}
    made = [
        Network(0, MEMBERS, *({rank: pairs[rank, kind][0] for rank in (1, 2)} for kind in ("control", "alarm"))),
        *(Network(r, MEMBERS, *({0: pairs[r, kind][1]} for kind in ("control", "alarm"))) for r in (1, 2)),
    ]
    yield made
    for each in made:
        each.close()


def test_a_forked_child_says_nothing_and_holds_nothing(three):
    zero, one, _ = three
    here, there = os.pipe()
    parent = os.fork()
    if parent == 0:
        zero.disown()
        three[2].disown()
        if os.fork() == 0:
            one.disown()
            one.announce(FAILED, "no")
            one.announce(LEFT)
            os.write(there, struct.pack("<i", os.getpid()))
            signal.pause()
        signal.pause()
    child = struct.unpack("<i", os.read(here, 4))[0]
    try:
        one.disown()  # rank 1 is `parent` from now on
        zero.progress()
        assert zero.failure is zero.departure is None
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        turn_until(lambda: zero.failure, zero)
        assert zero.failure == "rank 1 (process 101 on host host1) is gone: its connection was closed"
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(here)
        os.close(there)
