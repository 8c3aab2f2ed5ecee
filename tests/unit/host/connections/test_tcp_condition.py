"""The condition of a connection on which something has waited, in plain words."""

import socket
import time
from contextlib import suppress

import pytest

from distrun.host.connections.tcp_condition import Finding, TcpCondition, kilobytes
from distrun.host.connections.tcp_info import SentPackets, TcpInfo

FEW = SentPackets(1000, 3)


def condition(resent=0, idle=0.1, unacknowledged=0, unsent=0, backoff=0, packets=FEW):
    info = TcpInfo(resent, int(unacknowledged > 0), idle, resent, backoff)
    return TcpCondition(info, packets, unacknowledged, unsent)


@pytest.mark.parametrize(
    ("found", "finding"),
    [
        (condition(), Finding.SOUND),
        (condition(unacknowledged=1000), Finding.SOUND),  # it has only just been sent
        (condition(resent=2, unacknowledged=1000), Finding.SOUND),
        (condition(resent=3, unacknowledged=1000), Finding.UNANSWERED),
        (condition(packets=SentPackets(1000, 10)), Finding.LOSSY),
        (condition(packets=SentPackets(1001, 10)), Finding.SOUND),
        (condition(packets=SentPackets(20, 9)), Finding.SOUND),
        (condition(resent=7, unacknowledged=1000, packets=SentPackets(1000, 100)), Finding.UNANSWERED),
        (condition(unsent=1000, backoff=3), Finding.NOT_READ),
        (condition(unsent=1000), Finding.SOUND),
        (condition(unsent=1000, unacknowledged=10, backoff=3), Finding.SOUND),
    ],
)
def test_what_is_wrong_is_found_the_worst_first(found, finding):
    assert found.finding is finding
    assert bool(found.describe()) == (finding is not Finding.SOUND)


def test_data_that_are_not_acknowledged_are_told_with_their_size_tries_and_time():
    stuck = condition(resent=7, idle=12.2, unacknowledged=48_000)
    assert stuck.describe() == (
        "has 48 kB unacknowledged, sent again 7 times, and nothing has come from there for 12 s: packets are lost on "
        "the way"
    )
    assert stuck.describe(small_pass=True) == (
        "has 48 kB unacknowledged, sent again 7 times, while small packets are answered: large packets are lost on the "
        "way (an MTU black hole)"
    )


def test_where_something_comes_from_there_the_way_there_loses_packets():
    assert condition(resent=4, idle=0.5, unacknowledged=48_000).describe() == (
        "has 48 kB unacknowledged, sent again 4 times, while packets come from there: packets are lost on the way "
        "there, large ones perhaps"
    )


def test_a_few_bytes_that_are_lost_are_no_large_packet():
    assert "MTU" not in condition(resent=4, idle=9.0, unacknowledged=40).describe(small_pass=True)


def test_loss_is_told_with_its_share():
    assert condition(packets=SentPackets(1240, 62)).describe() == (
        "has sent 5 % of its packets again (62 of 1240): packets are lost on the way"
    )


@pytest.mark.parametrize(
    ("info", "within", "is_answered"),
    [
        (TcpInfo(0, 0, 2.0), 3.0, True),
        (TcpInfo(0, 0, 4.0), 3.0, False),
        (TcpInfo(0, 0, 4.0), 9.0, True),
        (TcpInfo(0, 1, 2.0), 3.0, False),
        (TcpInfo(1, 0, 2.0), 3.0, False),
    ],
)
def test_a_connection_is_answered_when_nothing_is_due_and_something_came(info, within, is_answered):
    assert TcpCondition(info, FEW, 0, 0).is_answered(within) == is_answered


@pytest.mark.parametrize(
    ("count", "text"), [(1, "1 byte"), (999, "999 bytes"), (4300, "4.3 kB"), (48_100, "48 kB"), (3_100_000, "3.1 MB")]
)
def test_sizes_are_told_in_two_digits(count, text):
    assert kilobytes(count) == text


def test_a_process_that_does_not_read_is_told_from_a_network_that_loses_and_from_a_dead_host():
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as one, listener.accept()[0] as other:
            assert TcpCondition.of(one).finding is Finding.SOUND
            assert TcpCondition.of(one).is_answered()
            one.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    one.send(bytes(1 << 16))
            assert not TcpInfo.of(one).is_dead(0.5)  # the kernel there answers probes of its closed window
            deadline = time.monotonic() + 60
            while TcpCondition.of(one).finding is not Finding.NOT_READ:  # the kernel asks now and then
                assert time.monotonic() < deadline
            assert "the network is not the cause" in TcpCondition.of(one).describe()
            assert TcpCondition.of(other).finding is Finding.SOUND
        with pytest.raises((OSError, ValueError)):
            TcpCondition.of(one)
