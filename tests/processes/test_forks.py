"""Connections of a rank that forks: its children neither hold them open nor speak on them."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from in_process.connected_ranks import End, pair_of_sockets, three_networks, turn_until

from distrun.runtime.transport.channel import Channel
from distrun.runtime.transport.connections import Stream
from distrun.runtime.transport.shared_memory.segment import FAILED, LEFT

pytestmark = pytest.mark.gate


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
            end.connections.disown()
            os.write(there, struct.pack("<i", os.getpid()))
            signal.pause()
        signal.pause()
    theirs.close()
    children.append(struct.unpack("<i", os.read(here, 4))[0])
    end = End(kind, ours)
    if kind is Stream:
        end.it.receive(np.zeros(3, np.uint8).data)
    end.connections.progress()
    assert not end.reasons
    os.kill(middle, signal.SIGKILL)
    os.waitpid(middle, 0)
    turn_until(lambda: end.reasons, end)
    assert end.reasons == ["its connection was closed"]
    end.connections.close()
    os.close(here)
    os.close(there)


def test_the_parent_goes_on_while_its_child_has_disowned_the_connections():
    one, other = (End(Channel, connection) for connection in pair_of_sockets())
    child = os.fork()
    if child == 0:
        one.connections.disown()
        os._exit(0)
    os.waitpid(child, 0)
    one.it.send(b"hello")
    turn_until(lambda: other.messages, one, other)
    other.it.send(b"hello yourself")
    turn_until(lambda: one.messages, one, other)
    one.connections.close()
    other.connections.close()
    assert one.reasons == other.reasons == []


@pytest.fixture
def three():
    """Ranks 0, 1 and 2 of three hosts, connected as after the rendezvous."""
    yield from three_networks()


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
