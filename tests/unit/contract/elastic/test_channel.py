"""A rank's end of the control channel, with the test at the other end."""

from __future__ import annotations

import os
import select
import socket
import threading

import pytest

from distrun.contract.elastic import interruption
from distrun.contract.elastic.channel import Channel
from distrun.contract.elastic.messages import PIECE, Assignment, Joined, Joiner, Prepare, Waiting, encode, encode_pieces
from distrun.errors import BootstrapError, LaunchError

DEADLINE = 60.0


class Launcher:
    """The other end, and what the channel has been told has been heard."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.heard = threading.Semaphore(0)
        self.channel = Channel(theirs)
        self.channel.on_interruption = self.heard.release

    def say(self, *messages: object) -> None:
        for message in messages:
            self.socket.send(encode(message))
            assert self.heard.acquire(timeout=DEADLINE)

    def leave(self) -> None:
        self.socket.close()
        self.channel._thread.join(DEADLINE)

    @property
    def interrupts(self) -> bool:
        poll = select.poll()
        poll.register(self.channel.stop_fd, select.POLLIN)
        return bool(poll.poll(0))


@pytest.fixture
def launcher():
    launcher = Launcher()
    yield launcher
    launcher.leave()
    launcher.channel._connection.close()
    os.close(launcher.channel.stop_fd)


def test_the_newest_assignment_counts_and_interrupts_until_it_is_taken(launcher):
    channel = launcher.channel
    channel.generation = 1
    launcher.say(Assignment(2, {"A": "1"}, "rank 1 died"), Assignment(3, {"A": "2"}, "rank 2 died"))
    assert (channel.interruption, launcher.interrupts) == ("rank 2 died", True)
    assert channel.await_assignment() == Assignment(3, {"A": "2"}, "rank 2 died")
    assert (channel.generation, channel.interruption, launcher.interrupts) == (3, None, False)


def test_an_assignment_that_comes_late_is_nothing(launcher):
    channel = launcher.channel
    launcher.say(Assignment(3, {}, "b"))
    channel.await_assignment()
    launcher.say(Assignment(2, {}, "a"))
    assert (channel.interruption, launcher.interrupts) == (None, False)


def test_a_plan_is_for_its_generation(launcher):
    channel = launcher.channel
    channel.generation = 1
    launcher.say(Prepare(2, "a host comes"))
    assert channel.planned is None
    launcher.say(Assignment(2, {}, "a"))
    channel.await_assignment()
    assert (channel.planned, channel.interruption) == ("a host comes", None)
    launcher.say(Assignment(3, {}, "a"))
    channel.await_assignment()
    assert channel.planned is None


def test_without_a_launcher_nothing_is_waited_for(launcher):
    channel = launcher.channel
    channel.generation = 1
    launcher.leave()
    assert "the launcher is gone" in str(channel.interruption)
    assert launcher.interrupts
    for wait in (channel.await_assignment, lambda: channel.send(Joined(1))):
        with pytest.raises(LaunchError, match="the launcher is gone"):
            wait()


def test_waits_end_with_the_reason(launcher):
    channel = launcher.channel
    channel.generation = 1
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"!")
        interruption.await_readable(ours, 0.0, channel)
        ours.recv(1)
        with pytest.raises(TimeoutError):
            interruption.await_readable(ours, 0.0, channel)
        launcher.say(Assignment(2, {}, "rank 1 died"))
        with pytest.raises(BootstrapError, match=r"^rank 1 died$"):
            interruption.await_readable(ours, float(1 << 40), channel)
        with pytest.raises(BootstrapError, match=r"^rank 1 died$"):
            interruption.pause(DEADLINE, channel)


def test_messages_of_any_length_pass_in_both_directions(launcher):
    environ = {"TF_CONFIG": "10.0.0.1:40000+." * 50_000}
    *pieces, last = encode_pieces(Assignment(1, environ, "rank 1 died"))
    assert len(pieces) > 10
    for piece in pieces:
        launcher.socket.send(piece)
    launcher.socket.send(last)
    for _ in range(len(pieces) + 1):
        assert launcher.heard.acquire(timeout=DEADLINE)
    assert launcher.channel.await_assignment().environ == environ

    said = Waiting(1, "x" * 5 * PIECE)
    threading.Thread(target=launcher.channel.send, args=(said,)).start()  # it waits until there is room
    joiner, heard = Joiner(), None
    while heard is None:
        heard = joiner.feed(launcher.socket.recv(2 * PIECE))
    assert heard == said
