"""Measuring between two ends on this machine, and strangers who come in between."""

import socket
import threading
import time

import pytest
from in_process.calls import DEADLINE, started

from distrun.runner.protocol.handshake import HostError
from distrun.tools.doctor.network import authentication, client, packet_sizes, server as serving, transfers
from distrun.tools.doctor.network.server import BenchmarkServer

KEY = b"k" * 32
NOTHING = {"rate": None, "sent": 0, "lost": 0}


@pytest.fixture(autouse=True)
def _times(monkeypatch):
    """Measurements are short, and an answer may be late on a busy machine."""
    monkeypatch.setattr(transfers, "_MEASURING", 0.1)
    for module, name in ((authentication, "_PROOF"), (client, "_CONNECT"), (packet_sizes, "_ANSWER")):
        monkeypatch.setattr(module, name, 60.0)
    for module in (client, serving):
        monkeypatch.setattr(module, "IDLE_TIMEOUT", 60.0)


@pytest.fixture
def server():
    made = BenchmarkServer("127.0.0.1", KEY)
    yield made
    made.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", made.port))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_both_directions_and_the_round_trip_are_measured(address):
    made = BenchmarkServer(address, KEY)
    found = client.measure(address, made.port, KEY)
    sent = made.close()
    assert found["address"] == address
    assert 0 < found["round_trip"] < 1
    assert found["rate"] > 1e6
    assert sent["rate"] > 1e6
    for packets in (found, sent):
        assert packets["sent"] > 100
        assert packets["lost"] * 100 < packets["sent"]


def test_a_listener_that_nobody_calls_has_measured_nothing(server):
    assert server.close() == NOTHING


def test_a_caller_with_another_key_learns_and_gets_nothing(server):
    with pytest.raises(HostError, match="another program answers"):
        client.measure("127.0.0.1", server.port, b"x" * 32)
    assert server.close() == NOTHING


def test_a_listener_with_another_key_is_not_believed():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend():
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"n" * 32)
                peer.recv(1 << 10)
                peer.sendall(b"p" * 32)
                peer.recv(1)

        pretending = started(pretend)
        with pytest.raises(HostError, match="another program answers"):
            client.measure("127.0.0.1", server.getsockname()[1], KEY)
        pretending.result(DEADLINE)


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, b"\xff" * 100000])
def test_strangers_do_not_keep_the_caller_out(server, words, monkeypatch):
    read, seconds = authentication.read, [0.3]

    def read_in_time(peer, size, deadline):
        """Give the stranger, who comes first, little time for a proof, and the caller as much as it has."""
        if seconds and threading.current_thread() is server._thread:
            deadline = time.monotonic() + seconds.pop()
        return read(peer, size, deadline)

    monkeypatch.setattr(authentication, "read", read_in_time)
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(words)
        assert client.measure("127.0.0.1", server.port, KEY)["rate"]


def test_a_stranger_that_trickles_is_dropped_in_time(server, monkeypatch):
    monkeypatch.setattr(authentication, "_PROOF", 0.3)
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        start = time.monotonic()
        stranger.settimeout(0.1)
        while trickle(stranger):
            assert time.monotonic() - start < 60


def trickle(stranger):
    """Send one byte; False when the other side has had enough."""
    try:
        stranger.sendall(b"x")
        return stranger.recv(100) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def test_nobody_there_is_an_error_with_a_reason():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(HostError, match="connection refused"):
        client.measure("127.0.0.1", port, KEY)
    with pytest.raises(HostError, match=r"cannot listen on 203\.0\.113\.1"):
        BenchmarkServer("203.0.113.1", KEY)


@pytest.mark.parametrize("is_sent", [True, False])
def test_all_packets_pass_on_this_machine(server, is_sent):
    found = client.largest_packet("127.0.0.1", server.port, KEY, is_sent)
    assert found["passing"] == found["full"]
    assert 1 << 14 < found["full"] <= 1 << 16  # the MTU of lo


def test_a_transfer_at_a_steady_pace_is_no_faster(server):
    assert client.transfer("127.0.0.1", server.port, KEY, 2_000_000, 4_000_000)["rate"] < 8_000_000
    served = server.close()
    assert served["rate"] < 4_000_000
    assert served["lost"] == 0
