"""Names of abstract sockets that are free, taken, or made up."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterator

import pytest

from distrun.errors import BootstrapError
from distrun.host import abstract_sockets
from distrun.host.abstract_sockets import Names, connect, listen, listening

STREAM = socket.SOCK_STREAM
STRANGER = (4711, os.getuid() + 1)


@pytest.fixture
def name() -> bytes:
    """A name that nobody has."""
    return b"\0distrun-test-" + secrets.token_hex(8).encode()


@pytest.fixture
def taken(name, monkeypatch) -> Iterator[bytes]:
    """A name that another user has."""
    with socket.socket(socket.AF_UNIX, STREAM) as squatter:
        squatter.bind(name)
        squatter.listen(1)
        owner = abstract_sockets._owner
        monkeypatch.setattr(abstract_sockets, "_owner", lambda *asked: owner(*asked) and STRANGER)
        yield name


def test_a_name_that_is_free_is_used(name):
    with listen(STREAM, name, 1) as listener, connect(STREAM, name) as client:
        assert listener.getsockname() == client.getpeername() == name
        assert client.gettimeout() is None
        assert abstract_sockets.peer_process(client) == (os.getpid(), os.getuid())
        assert listening(name[:-1]) == [name]
    with pytest.raises(ConnectionRefusedError):
        connect(STREAM, name)
    assert listening(name) == []


def test_another_is_used_where_a_stranger_has_it_and_found(taken, caplog, monkeypatch):
    names = Names(taken)
    with listen(STREAM, taken, 1) as listener:
        other = listener.getsockname()
        assert re.fullmatch(taken + rb"-[0-9a-f]{16}", other)
        assert caplog.messages == [
            f"process 4711 of user id {STRANGER[1]} has taken the abstract socket @{taken[1:].decode()}; "
            "this job uses another one"
        ]
        assert names.to_try() == [taken]
        monkeypatch.setattr(names, "_look_at", 0.0)
        assert names.to_try() == [taken, other]
        assert names.to_try() == [taken], "the kernel's list is not read all the time"


def test_no_other_is_used_where_that_is_not_wanted(taken):
    with pytest.raises(OSError, match="Address already in use"):
        listen(STREAM, taken, 1, may_be_longer=False)


def test_a_process_of_this_user_that_has_the_name_is_named(name):
    with listen(STREAM, name, 1), pytest.raises(OSError, match=f"process {os.getpid()} of user id {os.getuid()} has"):
        listen(STREAM, name, 1)


def test_a_stranger_is_not_talked_with(name, monkeypatch):
    with listen(STREAM, name, 1):
        monkeypatch.setattr(abstract_sockets, "peer_process", lambda _: STRANGER)
        with pytest.raises(
            BootstrapError, match=f"process 4711 of user id {STRANGER[1]} is there, and this process is"
        ):
            connect(STREAM, name)


def test_who_accepts_nobody_is_not_waited_for(name):
    with listen(STREAM, name, 0), connect(STREAM, name), pytest.raises(BlockingIOError):
        connect(STREAM, name)


def test_names_with_spaces_are_none_of_ours_and_lines_that_names_make_up_do_no_harm(name):
    with listen(STREAM, name + b" 1", 1), listen(STREAM, name + b"\nx x x y x x x @" + name[1:], 1):
        assert set(listening(name)) == {name}  # what stands before the line break
        with pytest.raises(ConnectionRefusedError):
            connect(STREAM, name)
