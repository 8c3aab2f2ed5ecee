"""Metrics for Prometheus: addresses, the text format, and a server of one page."""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

import pytest
from histories.training import History, play

from distrun.errors import UsageError
from distrun.runner.observation.metrics import server as metrics_server
from distrun.runner.observation.metrics.consumer import Metrics, metric
from distrun.runner.observation.metrics.server import Server, parse_address
from distrun.runner.planning.plan import LaunchPlan

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":9090", ("127.0.0.1", 9090)),
        ("0.0.0.0:9090", ("0.0.0.0", 9090)),
        ("[::1]:80", ("::1", 80)),
        ("alpha:0", ("alpha", 0)),
    ],
)
def test_addresses(text, expected):
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["9090", "", ":", ":x", ":70000", "::1:9090", "-1", ":-1", ":٣"])
def test_anything_else_is_refused(text):
    with pytest.raises(UsageError, match=r":9090 for this machine alone"):
        parse_address(text)


def test_labels_are_escaped():
    lines = metric("distrun_x", "gauge", "A thing", [({"host": 'a"b\\c\nd'}, 1.5)])
    assert lines == ["# HELP distrun_x A thing", "# TYPE distrun_x gauge", 'distrun_x{host="a\\"b\\\\c\\nd"} 1.5']
    assert metric("distrun_x", "gauge", "A thing", []) == []


@pytest.fixture
def server():
    """A server at a port that was free."""
    server = Server("127.0.0.1", 0)
    yield server
    server.close()


def get(server: Server, path: str = "/metrics") -> str:
    """Return what a server answers."""
    with urllib.request.urlopen(f"http://{server.address}{path}", timeout=30) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return answer.read().decode()


def test_a_server_gives_the_page_of_the_moment_and_nothing_else(server):
    server.page = b"one\n"
    assert get(server) == "one\n"
    server.page = b"two\n"
    assert get(server, "/metrics?x=1") == "two\n"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(server, "/etc/passwd")


def asks(server: Server) -> socket.socket:
    """Return a connection with a server that has accepted it, and waits for its request."""
    host, port = server.address.split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(b"GET ")
    return connection


def test_clients_that_only_connect_are_few_and_disturb_nobody(server):
    server.page = b"one\n"
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as clients:
        for number in range(200):
            clients.enter_context(asks(server))
            assert get(server) == "one\n"
            assert len(os.listdir("/proc/self/fd")) <= before + number + 1 + 16
        assert threading.active_count() < 50


def test_a_client_has_a_deadline_however_busy_it_is(server, monkeypatch):
    monkeypatch.setattr(metrics_server, "_SECONDS", 0.1)
    with asks(server) as client:
        assert client.recv(1) == b""
    assert get(server) == ""


@pytest.mark.parametrize("request_", [b"x" * 10_000, b"\xff\r\n\r\n", b"\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n"])
def test_nonsense_is_turned_away(server, request_):
    with asks(server) as client, suppress(OSError):  # it may have been turned away already
        client.sendall(request_)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100)[:9] in (b"", b"HTTP/1.0 ")
    assert get(server) == ""


def test_where_descriptors_are_scarce_there_are_no_clients(server, monkeypatch):
    monkeypatch.setattr(metrics_server, "PAUSE", 0.1)
    scarce = [True]
    monkeypatch.setattr(metrics_server, "are_scarce", lambda fd: scarce[0])
    with suppress(ConnectionResetError), asks(server) as client:
        assert client.recv(1) == b""
    scarce[0] = False
    assert get(server) == ""


def test_a_server_without_descriptors_rests(monkeypatch):
    """As at EMFILE: the connection waits in the kernel, and accepting it fails at once, again and again."""
    tries = []

    class Exhausted:
        def __init__(self, listener: socket.socket) -> None:
            self.fileno, self._listener = listener.fileno, listener

        def accept(self) -> tuple[socket.socket, object]:
            tries.append(None)
            if len(tries) < 3:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return self._listener.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(self._listener, name)

    monkeypatch.setattr(metrics_server, "PAUSE", 0.1)
    listen = metrics_server._listener
    monkeypatch.setattr(metrics_server, "_listener", lambda *address: Exhausted(listen(*address)))
    server = Server("127.0.0.1", 0)
    assert get(server) == ""
    server.close()
    assert 3 <= len(tries) <= 4  # the last of which waits for another client


def test_an_address_that_is_taken_is_refused(server):
    with pytest.raises(UsageError, match=r"--metrics cannot listen at 127\.0\.0\.1:\d+: Address already in use; give"):
        Server("127.0.0.1", int(server.address.rpartition(":")[2]))
    with pytest.raises(UsageError, match=r"--metrics cannot listen at 192\.0\.2\.1:9: "):
        Server("192.0.2.1", 9)


def test_the_metrics_of_a_history_are_right_and_keep_to_the_format(server):
    said: list[str] = []
    metrics = Metrics(server, LaunchPlan("job", 2, ()), said.append)
    assert said == [f"metrics are at http://{server.address}/metrics"]
    assert "distrun_ranks 2\n" in get(server)
    play(History(2, input_ms=lambda rank, step: 21.0 if rank else 1.0), 20, metrics)
    values = {}
    for line in get(server).splitlines():
        if not line.startswith("# "):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            values[name, labels or ""] = float(value)
    both = {rank: f'rank="{rank}",host="h{rank + 1}"' for rank in (0, 1)}
    seconds = values["distrun_seconds_total", f'{both[1]},activity="input"']
    steps = values["distrun_steps_total", both[1]]
    assert seconds / steps == pytest.approx(0.021, rel=0.03)
    assert values["distrun_samples_total", both[0]] == pytest.approx(32 * steps, rel=0.02)
    assert values["distrun_cost_seconds_total", both[1]] / steps == pytest.approx(0.020, rel=0.1)
    assert values["distrun_straggler_ratio", both[1]] == pytest.approx(0.31, rel=0.1)
    assert ("distrun_straggler_ratio", both[0]) not in values
