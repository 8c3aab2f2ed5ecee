"""A rank that has ended before it joined the others, as an agent tells it and ranks learn it."""

import os
import re
import socket

import pytest
from in_process.calls import DEADLINE, started

from distrun.contract.elastic.interruption import Either
from distrun.errors import BootstrapError
from distrun.host.departures import DEPARTURES_FD, Departures, departure
from distrun.runtime.transport.rendezvous.within_host import rendezvous_within_host

SENTENCE = "rank 2 on a (pid 7) exited with code 0"


@pytest.fixture
def agent():
    return Departures()


def test_the_first_sentence_is_read_again_and_again(agent):
    found, other = departure(agent.environ), departure(agent.environ)
    assert found.interruption is None
    agent.tell(SENTENCE.encode())
    agent.tell(b"rank 3")
    assert [found.interruption, found.interruption, other.interruption] == [SENTENCE] * 3


def test_an_agent_that_is_gone_ends_the_wait_too(agent):
    found = departure(agent.environ)
    agent._ours.close()
    assert found.interruption == "the agent on this host is gone"


@pytest.mark.parametrize("is_elastic", [False, True])
@pytest.mark.parametrize("position", [0, 1])
def test_who_waits_in_init_learns_it_at_once(agent, position, is_elastic):
    found, other = departure(agent.environ), Departures()
    if is_elastic:
        found = Either(departure(other.environ), found)
    waiting = started(rendezvous_within_host, f"{os.getpid()}", b"key", position, 3, 1000.0, found)
    agent.tell(SENTENCE.encode())
    with pytest.raises(BootstrapError, match=f"^{re.escape(SENTENCE)}$"):
        waiting.result(DEADLINE)


def test_a_descriptor_that_is_closed_or_something_else_by_now_tells_nothing(agent):
    with socket.socket() as other:
        descriptor, _, inode = agent.environ[DEPARTURES_FD].partition(":")
        for value in ("", "7", "x:y", f"{descriptor}:", f"{other.fileno()}:{inode}", f"999999:{inode}"):
            assert departure({DEPARTURES_FD: value}) is None
    assert departure({}) is None
