"""Messages from ranks of other hosts, and the detection of their end."""

import select
import socket
import struct
import time

import numpy as np
from in_process.connected_ranks import DEADLINE, MEMBERS, pair_of_sockets, turn_until

from distrun.runtime.transport import connections, network
from distrun.runtime.transport.network import Network
from distrun.runtime.transport.shared_memory.segment import FAILED, LEFT


def await_readable(fd: int) -> select.poll:
    """Wait until a descriptor is readable; return what polls it."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(DEADLINE * 1000), "nobody is told"
    return poll


def test_messages_come_with_their_senders(three):
    zero, one, two = three
    one.send(0, b"3 from one")
    two.send(0, b"4 from two")
    zero.send(2, b"5 from zero")
    turn_until(lambda: len(zero.inbox) == 2 and two.inbox, *three)
    assert sorted(zero.inbox) == [(1, b"3 from one"), (2, b"4 from two")]
    assert list(two.inbox) == [(0, b"5 from zero")]
    assert zero.failure is zero.trouble() is zero.departure is None


def test_an_alarm_is_heard_once_and_any_number_of_them_never_blocks(three):
    zero, one, _ = three
    assert not one.hear_alarms()
    for _ in range(100_000):
        zero.alarm(1)
    poll = await_readable(one.alarm_fd)
    assert one.hear_alarms()
    until = time.monotonic() + DEADLINE
    while poll.poll(0):
        assert time.monotonic() < until
        one.hear_alarms()
    assert not one.hear_alarms()
    assert not poll.poll(0)


def test_the_end_of_an_alarm_is_heard_once(three):
    zero, one, _ = three
    zero.close()
    poll = await_readable(one.alarm_fd)
    assert one.hear_alarms()
    assert not poll.poll(0)
    one.alarm(0)  # nobody hears it


def test_a_rank_that_leaves_is_known_everywhere_and_is_no_trouble(three):
    zero, one, two = three
    one.announce(LEFT, "its script ended with ValueError: 17")
    one.close()
    turn_until(lambda: zero.departure and two.departure, zero, two)
    text = "rank 1 (process 101 on host host1) has left: its script ended with ValueError: 17"
    assert zero.departure == two.departure == text
    assert zero.failure is zero.trouble() is two.failure is two.trouble() is None
    await_readable(zero.alarm_fd)  # an engine that sleeps is told


def test_a_rank_that_is_gone_without_a_word_is_a_failure(three):
    zero, one, _ = three
    one.close()
    turn_until(lambda: zero.failure, zero)
    assert zero.failure == zero.trouble() == "rank 1 (process 101 on host host1) is gone: its connection was closed"
    assert zero.departure is None


def test_an_alarm_that_breaks_says_why_the_rank_is_gone():
    control, control_end = pair_of_sockets()
    alarm, alarm_end = pair_of_sockets()
    zero = Network(0, MEMBERS, {1: control}, {1: alarm})
    try:
        alarm_end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        alarm_end.close()  # by a reset
        await_readable(zero.alarm_fd)
        assert zero.hear_alarms()
        turn_until(lambda: zero.failure, zero)
        assert zero.failure.endswith("is gone: its connection broke (Connection reset by peer)")
    finally:
        zero.close()
        control_end.close()


def test_a_failure_is_told_with_its_first_reason(three):
    zero, one, two = three
    one.announce(FAILED, "allreduce 'x': an accident")
    turn_until(lambda: zero.failure, zero)
    assert zero.failure == "rank 1 (process 101 on host host1) failed: allreduce 'x': an accident"
    zero.announce(FAILED, "something that follows from it")
    turn_until(lambda: two.failure, two)
    assert two.failure == zero.failure
    one.close()
    zero.progress()
    assert two.failure == zero.failure


def test_a_broken_stream_is_a_suspicion_until_somebody_knows_more(three, monkeypatch):
    _, one, two = three
    now = 1000.0
    monkeypatch.setattr(network.time, "monotonic", lambda: now)
    mine, theirs = pair_of_sockets()
    stream = two.stream(1, mine)
    theirs.close()
    stream.receive(np.zeros(3, np.uint8).data)
    while two.next_look == float("inf"):
        two.progress()
    assert two.trouble() is None
    assert (two.failure, two.next_look) == (None, now + network.REASON_TIMEOUT)
    now += network.REASON_TIMEOUT
    assert two.trouble() == "rank 1 (process 101 on host host1) is gone: its connection was closed"
    one.announce(FAILED, "the reason")
    monkeypatch.undo()
    turn_until(lambda: three[0].failure, *three)
    three[0].announce(FAILED, "")
    turn_until(lambda: two.failure, *three)
    assert two.trouble() == "rank 1 (process 101 on host host1) failed: the reason"


def test_a_stream_that_timed_out_is_trouble_at_once(three, monkeypatch):
    _, _, two = three
    now = 1000.0
    monkeypatch.setattr(network.time, "monotonic", lambda: now)
    monkeypatch.setattr(connections.TcpInfo, "is_dead", lambda *_: True)
    mine, theirs = pair_of_sockets()
    stream = two.stream(1, mine)
    stream.receive(np.zeros(3, np.uint8).data)
    assert two.trouble() is None
    now = two.next_look
    assert now > 1000.0
    assert two.trouble() is not None, "the other end of the stream tells another reason half a second later"
    theirs.close()


def test_a_stream_that_ends_while_nothing_is_under_way_is_no_suspicion(three):
    two = three[2]
    mine, theirs = pair_of_sockets()
    two.stream(1, mine)
    theirs.close()
    await_readable(two.fd)
    two.progress()
    assert two.next_look == float("inf")
