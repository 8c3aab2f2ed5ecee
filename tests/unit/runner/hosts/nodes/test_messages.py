"""The messages of launchers arrive as they were meant."""

import signal

import pytest

from distrun.host.interfaces import Interface
from distrun.runner.decisions import events
from distrun.runner.hosts.joining.messages import Member
from distrun.runner.hosts.nodes.messages import Assembly, Notification, concerns_others
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.handshake import HostInfo

INFO = HostInfo("1", "3.11", 7, 1, "", (Interface("eth0", "10.0.0.1", 8),), 2, (3, 4))
NODE = Member(1, 4, "a", 2, "/", least=2, info=INFO)


def test_an_assembly_arrives_as_it_was_sent():
    assembly = Assembly("job", (NODE, NODE), 1, 0)
    assert Assembly.from_json(assembly.to_json()) == assembly


@pytest.mark.parametrize(
    "event",
    [
        events.RankStarted(3, 77),
        events.RankNotStarted(3, 127, "no such file"),
        events.RankExited(3, RankExit(-9, True), lost_peer=True),
        events.AgentGone("a", 2, 1),
        events.AgentLost("a", "was killed", 137),
        events.SignalReceived(signal.SIGINT, "a"),
    ],
)
def test_notifications_arrive_as_they_were_sent(event):
    sent = Notification("a", event, b"\xff last lines\n")
    assert Notification.from_json(sent.to_json()) == sent


@pytest.mark.parametrize(
    ("event", "concerns"),
    [
        (events.SignalReceived(signal.SIGTERM), True),
        (events.SignalReceived(signal.SIGUSR1), False),
        (events.Printed(), False),
        (events.HostReady("a"), False),
    ],
)
def test_only_some_events_concern_other_nodes(event, concerns):
    assert concerns_others(event) is concerns
