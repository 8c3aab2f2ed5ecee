"""Notifying the launchers of other nodes of events."""

import signal
import socket
import threading

import pytest
from in_process.calls import DEADLINE, started

from distrun.runner.decisions import events
from distrun.runner.hosts.joining.connection import Connection
from distrun.runner.hosts.joining.messages import MessageDecoder, MessageKind, encode
from distrun.runner.hosts.nodes.messages import Notification
from distrun.runner.hosts.nodes.peers import Peers

pytestmark = pytest.mark.usefixtures("no_descriptors_left")


def test_a_notification_is_on_its_way_when_a_launcher_is_about_to_stop():
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    peers = Peers("alpha", {"beta": Connection(ours)}, ["beta"])
    is_busy, may_continue = threading.Event(), threading.Event()

    def on_notification(notification):
        is_busy.set()
        may_continue.wait(DEADLINE)

    with theirs:
        peers.start(on_notification)
        sent = Notification("beta", events.SignalReceived(signal.SIGCONT, "beta"))
        theirs.sendall(encode(MessageKind.EVENT, sent.to_json()))
        assert is_busy.wait(DEADLINE)
        theirs.setblocking(False)
        peers.notify(events.SignalReceived(signal.SIGTSTP))
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        waiting = started(peers.flush)
        may_continue.set()
        waiting.result(DEADLINE)
        ((kind, payload),) = MessageDecoder().feed(theirs.recv(1 << 16))
        assert kind is MessageKind.EVENT
        assert Notification.from_json(payload).event == events.SignalReceived(signal.SIGTSTP, "alpha")
        peers.close()
