"""The messages of launchers arrive as they were meant."""

from __future__ import annotations

import json
import signal

import pytest

from distrun.host.interfaces import Interface
from distrun.runner.decisions import events
from distrun.runner.hosts.nodes.messages import Assembly, News, Node, is_told
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.handshake import HostInfo

NODE = Node("a", 2, "2", None, HostInfo("1", "3.11", 7, 1, "", (Interface("eth0", "10.0.0.1", 8),), 2, (3, 4)))


def test_an_assembly_arrives_as_it_was_sent():
    assembly = Assembly("job", (NODE, NODE), 1, 0)
    assert Assembly.from_json(json.loads(json.dumps(assembly.to_json()))) == assembly


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
def test_news_arrives_as_it_was_sent(event):
    news = News("a", event, b"\xff last words\n")
    assert News.from_json(json.loads(json.dumps(news.to_json()))) == news


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (events.SignalReceived(signal.SIGTERM), True),
        (events.SignalReceived(signal.SIGUSR1), False),
        (events.Printed(), False),
        (events.HostReady("a"), False),
    ],
)
def test_only_what_concerns_other_nodes_is_told(event, told):
    assert is_told(event) is told
