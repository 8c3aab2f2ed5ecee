"""The channel to an agent whose host has joined, when that host takes and says nothing any more."""

import socket

import pytest
from in_process.calls import DEADLINE, started

from distrun.runner.hosts.joining import channel as channels
from distrun.runner.hosts.joining.channel import Channel
from distrun.runner.hosts.joining.connection import Connection
from distrun.runner.hosts.joining.messages import MessageKind, encode


@pytest.fixture
def ends():
    pair = socket.socketpair()
    yield pair
    for end in pair:
        end.close()


def test_a_frozen_host_delays_neither_the_reader_nor_who_ends_its_agent(ends, monkeypatch):
    monkeypatch.setattr(channels, "_TAKE_TIMEOUT", 0.1)
    channel = Channel(Connection(ends[0]), "3")
    writing = started(channel.write, bytes(64 << 20))
    assert ends[1].recv(1, socket.MSG_PEEK)  # it has begun, and cannot end
    with pytest.raises(TimeoutError):
        channel.read(0.05)
    channel.kill()
    assert isinstance(writing.exception(DEADLINE), OSError)
    assert channel.read(DEADLINE) == b""
    channel.close()


def test_a_host_that_takes_the_request_and_tells_of_no_end_is_given_up(ends, monkeypatch):
    monkeypatch.setattr(channels, "EXIT_TIMEOUT", 0.1)
    channel = Channel(Connection(ends[0]), "3")
    channel.kill()
    assert ends[1].recv(100) == encode(MessageKind.KILL)
    assert channel.read(DEADLINE) == b""
    channel.close()


def test_an_agent_whose_end_is_told_leaves_the_connection_as_it_was(ends):
    channel = Channel(Connection(ends[0]), "3")
    ends[1].sendall(encode(MessageKind.EXITED, b'{"returncode": -9}'))
    channel.kill()
    assert (channel.read(DEADLINE), channel.wait()) == (b"", -9)
    channel._timer.function()  # what it does when its time is over
    ends[0].sendall(b"more")
    assert ends[1].recv(100) == encode(MessageKind.KILL) + b"more"
    channel.close()
