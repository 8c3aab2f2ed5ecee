"""Ranks that have ended without calling init, as an agent tells and ranks learn it."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from distrun.errors import BootstrapError
from distrun.runner.agent.departures import Departures
from distrun.runtime.bootstrap.departures import departures
from distrun.runtime.contract import DEPARTURES_FD
from distrun.runtime.rendezvous.within_host import rendezvous_within_host


@pytest.fixture
def agent():
    made = Departures()
    yield made
    for descriptor in made.environ[DEPARTURES_FD].split(","):
        os.close(int(descriptor))


def test_who_has_ended_is_read_in_order_and_each_once(agent):
    found = departures(agent.environ)
    assert found.interruption is None
    agent.add([7])
    assert found.interruption == "rank 7 has ended without calling init()"
    agent.add([2, 7, 3])
    agent.add([7])
    assert found.interruption == "ranks 2-3, 7 have ended without calling init()"


@pytest.mark.parametrize("position", [0, 1])
def test_who_waits_in_init_learns_it_at_once(agent, position):
    found, raised = departures(agent.environ), []

    def meet():
        try:
            rendezvous_within_host(f"{os.getpid()}", b"key", position, 3, 1000.0, found)
        except BootstrapError as error:
            raised.append(str(error))

    waiting = threading.Thread(target=meet)
    waiting.start()
    agent.add([2])
    waiting.join(60)
    assert raised == ["rank 2 has ended without calling init()"]


def test_descriptors_that_are_closed_or_something_else_by_now_tell_nothing(agent):
    with socket.socket() as other:
        memory, _, bell = agent.environ[DEPARTURES_FD].partition(",")
        for value in ("", "7", "x,y", f"{memory},", f"{other.fileno()},{bell}", f"{memory},{other.fileno()}", "-1,-1"):
            assert departures({DEPARTURES_FD: value}) is None
    assert departures({}) is None
