"""A ring is never lost, and costs a system call only when somebody sleeps."""

from __future__ import annotations

import os
import platform
import select

import pytest
from in_process.calls import at_once

from distrun.runtime.transport.shared_memory.doorbell import Doorbell, Sleeper, new_bell_fd

ORDERED = platform.machine() in ("x86_64", "AMD64", "i686")  # elsewhere a bell is always rung


@pytest.fixture
def bell():
    fd = new_bell_fd()
    yield Doorbell(fd, memoryview(bytearray(64)).cast("q"), 3)
    os.close(fd)


def rung(bell: Doorbell) -> bool:
    return bool(select.select([bell.fd], [], [], 0)[0])


@pytest.mark.skipif(not ORDERED, reason="on this machine a bell is always rung")
def test_an_owner_is_rung_once_and_only_while_the_bell_is_armed(bell):
    bell.ring()
    assert not rung(bell)
    bell.arm()
    bell.ring()
    assert rung(bell)
    bell.drain()
    bell.ring()
    assert not rung(bell), "one ring is enough for all"
    bell.arm()
    bell.disarm()
    bell.ring()
    assert not rung(bell)


def test_an_armed_bell_rings_and_force_rings_any_until_all_rings_are_drained(bell):
    bell.arm()
    bell.ring()
    assert rung(bell)
    bell.drain()
    bell.disarm()
    for _ in range(3):
        bell.force()
    assert rung(bell)
    bell.drain()
    assert not rung(bell)
    bell.drain()


def test_a_bell_that_was_rung_too_often_or_is_gone_does_not_disturb(bell):
    os.eventfd_write(bell.fd, 2**64 - 2)  # one more would block
    bell.force()
    gone = Doorbell(new_bell_fd(), memoryview(bytearray(64)).cast("q"), 0)
    os.close(gone.fd)
    gone.force()


def test_bells_are_not_inherited(bell):
    assert not os.get_inheritable(bell.fd)


def test_sleep_ends_with_a_ring_or_with_the_time(bell):
    sleeper = Sleeper(bell, {})
    assert sleeper.sleep(0.0) == []
    assert sleeper.sleep(0.001) == []
    bell.force()
    assert sleeper.sleep() == []  # for ever, but for the ring
    assert not rung(bell)


def test_no_ring_is_lost_between_two_threads(bell):
    """Each publishes a number, rings, and waits for the other's: one lost ring and both sleep for ever."""
    bells = [bell, Doorbell(new_bell_fd(), memoryview(bytearray(64)).cast("q"), 0)]
    numbers = [0, 0]
    turns = 3000
    late: list[int] = []

    def play(me: int) -> None:
        sleeper = Sleeper(bells[me], {})
        for turn in range(1, turns + 1):
            numbers[me] = turn
            bells[1 - me].ring()
            while numbers[1 - me] < turn:
                bells[me].arm()
                if numbers[1 - me] < turn and not select.select([bells[me].fd], [], [], 60.0)[0]:
                    late.append(turn)
                    return
                sleeper.sleep(0.0)
                bells[me].disarm()

    at_once(play, range(2))
    os.close(bells[1].fd)
    assert late == []
