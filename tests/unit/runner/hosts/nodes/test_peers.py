"""Telling the launchers of other nodes what happens."""

from __future__ import annotations

import json
import signal
import socket
import threading

import pytest

from distrun.runner.decisions import events
from distrun.runner.hosts.nodes.connection import Connection
from distrun.runner.hosts.nodes.messages import News
from distrun.runner.hosts.nodes.peers import Peers

pytestmark = pytest.mark.usefixtures("no_descriptors_left")
DEADLINE = 60.0  # seconds


def test_what_was_told_is_on_its_way_when_a_launcher_is_about_to_stop():
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    peers = Peers("alpha", {"beta": Connection(ours)}, ["beta"])
    is_busy, goes_on = threading.Event(), threading.Event()

    def hear(news):
        is_busy.set()
        goes_on.wait(DEADLINE)

    with theirs:
        peers.start(hear)
        theirs.sendall(
            json.dumps(News("beta", events.SignalReceived(signal.SIGCONT, "beta")).to_json()).encode() + b"\n"
        )
        assert is_busy.wait(DEADLINE)
        theirs.setblocking(False)
        peers.tell(events.SignalReceived(signal.SIGTSTP))
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        waiting = threading.Thread(target=peers.await_told)
        waiting.start()
        goes_on.set()
        waiting.join(DEADLINE)
        told = News.from_json(json.loads(theirs.recv(1 << 16)))
        assert told.event == events.SignalReceived(signal.SIGTSTP, "alpha")
        peers.close()
