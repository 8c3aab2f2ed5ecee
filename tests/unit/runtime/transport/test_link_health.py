"""The health of the connections between ranks of different hosts."""

import pytest
from in_process.connected_ranks import MEMBERS, pair_of_sockets, turn_until

from distrun.host.connections.tcp_condition import TcpCondition
from distrun.host.connections.tcp_info import SentPackets, TcpInfo
from distrun.runtime.transport import link_health
from distrun.runtime.transport.network import Network

STUCK = TcpCondition(TcpInfo(7, 3, 12.0, 7), SentPackets(20, 7), 48_000, 0)
SOUND = TcpCondition(TcpInfo(0, 0, 0.5), SentPackets(20, 0), 0, 0)
QUIET = TcpCondition(TcpInfo(0, 0, 60.0), SentPackets(20, 0), 0, 0)
LOSING = TcpCondition(TcpInfo(0, 0, 0.5), SentPackets(20, 4), 0, 0)
UNREAD = TcpCondition(TcpInfo(0, 0, 0.5, backoff=3), SentPackets(20, 0), 0, 9000)


def test_sound_connections_are_no_trouble_and_are_answered(three):
    zero, one, _ = three
    assert zero.peers == [1, 2]
    assert one.peers == [0]
    assert link_health.troubles(zero) == link_health.troubles(one) == []
    assert link_health.answers(zero, 1)
    assert not link_health.is_unheard(one, 0)


def test_connections_that_are_closed_say_nothing(three):
    zero, _, _ = three
    zero.close()
    assert link_health.troubles(zero) == []
    assert not link_health.answers(zero, 1)


@pytest.mark.parametrize(
    ("conditions", "words", "answers"),
    [
        (
            [STUCK, SOUND],
            "large packets are lost on the way (an MTU black hole); run 'distrun doctor -H host0,host1'",
            False,
        ),
        ([STUCK, LOSING], "for 12 s: packets are lost on the way; run 'distrun doctor -H host0,host1'", False),
        ([STUCK, QUIET], "for 12 s: packets are lost on the way; run 'distrun doctor -H host0,host1'", False),
        ([SOUND, UNREAD], "it is stopped or busy, and the network is not the cause", True),
        ([QUIET], "", False),
    ],
)
def test_the_worst_connection_is_told_in_the_light_of_the_others(three, monkeypatch, conditions, words, answers):
    zero, _, _ = three
    monkeypatch.setattr(link_health, "_conditions", lambda network, rank: conditions)
    said = link_health.trouble_with(zero, 1)
    assert said.endswith(words)
    assert bool(said) == bool(words)
    assert link_health.answers(zero, 1) == answers
    if said:
        assert said.startswith("the connection to rank 1 (process 101 on host host1) ")


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ([SOUND, LOSING], "its host answers small packets, and large ones are lost on the way (an MTU black hole)"),
        ([QUIET, LOSING], "its host answers, and too many packets are lost on the way"),
        ([STUCK, QUIET], ""),
    ],
)
def test_a_connection_that_timed_out_is_explained_by_the_others(three, monkeypatch, conditions, words):
    zero, _, _ = three
    monkeypatch.setattr(link_health, "_conditions", lambda network, rank: conditions)
    assert link_health.unanswered(zero, 1) == (words and f"{words}; run 'distrun doctor -H host0,host1'")


def test_a_complaint_comes_by_alarm_and_lasts_until_the_rank_is_heard(three):
    zero, one, _ = three
    one.alarm(0, is_complaint=True)
    while not zero.hear_alarms():
        pass
    assert zero.complaints == {1}
    assert link_health.unheard(zero, 1).startswith("what rank 1 (process 101 on host host1) sends to rank 0 is not ack")
    one.send(0, b"3 it has come")
    turn_until(lambda: zero.inbox, zero)
    assert zero.complaints == set()


def test_ranks_without_alarms_between_them_are_not_woken():
    control, other = pair_of_sockets()
    network = Network(1, MEMBERS, {0: control}, {})
    network.alarm(2, is_complaint=True)
    network.close()
    other.close()
