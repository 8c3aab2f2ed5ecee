"""Measuring between two ends on this machine, strangers, and the arithmetic of it."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from distrun.runner.doctor import link_benchmark
from distrun.runner.protocol.handshake import HostError

KEY = b"k" * 32


@pytest.fixture(autouse=True)
def _briefly(monkeypatch):
    monkeypatch.setattr(link_benchmark, "_MEASURING", 0.1)
    monkeypatch.setattr(link_benchmark, "_PROOF", 0.3)


@pytest.fixture
def server():
    made = link_benchmark.BenchmarkServer("127.0.0.1", KEY)
    yield made
    made.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", made.port))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_both_directions_and_the_round_trip_are_measured(address):
    made = link_benchmark.BenchmarkServer(address, KEY)
    found = link_benchmark.measure(address, made.port, KEY)
    sent = made.close()
    assert found["address"] == address
    assert 0 < found["round_trip"] < 0.1
    assert found["rate"] > 1e7
    assert sent is not None
    assert sent > 1e7


def test_a_listener_that_nobody_calls_has_measured_nothing(server):
    assert server.close() is None


def test_a_caller_with_another_key_learns_and_gets_nothing(server):
    with pytest.raises(HostError, match="another program answers"):
        link_benchmark.measure("127.0.0.1", server.port, b"x" * 32)
    assert server.close() is None


def test_a_listener_with_another_key_is_not_believed():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend():
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"n" * 32)
                peer.recv(1 << 10)
                peer.sendall(b"p" * 32)
                peer.recv(1)

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(HostError, match="another program answers"):
            link_benchmark.measure("127.0.0.1", server.getsockname()[1], KEY)
        thread.join()


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, b"\xff" * 100000])
def test_strangers_do_not_keep_the_caller_out(server, words):
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(words)
        assert link_benchmark.measure("127.0.0.1", server.port, KEY)["rate"]


def test_a_stranger_that_trickles_is_dropped_in_time(server):
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        start = time.monotonic()
        stranger.settimeout(0.1)
        while trickle(stranger):
            assert time.monotonic() - start < 10


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
        link_benchmark.measure("127.0.0.1", port, KEY)
    with pytest.raises(HostError, match=r"cannot listen on 203\.0\.113\.1"):
        link_benchmark.BenchmarkServer("203.0.113.1", KEY)


def test_the_warming_up_does_not_count():
    arrivals = [(0.0, 10**9), (0.01, 10**9), (0.1, 500), (0.2, 1000), (0.3, 1000)]
    assert link_benchmark.rate(arrivals, 0.05) == pytest.approx(10_000)


def test_a_trickle_counts_whole():
    assert link_benchmark.rate([(0.0, 100), (0.02, 100), (0.04, 100)], 0.05) == pytest.approx(5000)
    assert link_benchmark.rate([(0.0, 100), (0.5, 100)], 0.05) == pytest.approx(200)


def test_nothing_or_a_single_arrival_has_no_rate():
    assert link_benchmark.rate([], 0.05) is None
    assert link_benchmark.rate([(1.0, 100)], 0.05) is None
