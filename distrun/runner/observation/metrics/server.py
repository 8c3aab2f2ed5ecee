"""The server of one page, on a thread of its own, which serves all clients and keeps few of them.

Any machine that reaches the address may connect, as often as it likes: a client has ten seconds in all, the oldest
makes room for the next, and where the launcher has few descriptors left, there are no clients.

Prometheus's own client would be a dependency of the launcher for a format of four rules.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from distrun.errors import UsageError
from distrun.host.descriptors import OUT_OF_RESOURCES, PAUSE, are_scarce
from distrun.host.endpoints import format_endpoint
from distrun.runner.observation.metrics.text import CONTENT_TYPE

_SECONDS = 10.0  # that a client has
_MOST_CLIENTS = 16
_MOST_ASKED = 8192  # bytes of a request
_BACKLOG = 64


class Server:
    """Gives clients that ask for /metrics the latest page."""

    def __init__(self, host: str, port: int) -> None:
        """Listen at once, so that an address that cannot be used is known before the job starts.

        Args:
            host: an address of this machine.
            port: the port; 0: any that is free.

        Raises:
            UsageError: it cannot be used.
        """
        self.page = b""
        """The latest page; the maker of pages puts them here."""
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._listener = _listener(family, (str(address[0]), int(address[1])))
        except OSError as error:
            raise UsageError(
                f"--metrics cannot listen at {format_endpoint(host, port)}: {error.strerror}; give another address or "
                "port"
            ) from None
        self._end = os.eventfd(0)
        self._poll = select.epoll()
        self._poll.register(self._end, select.EPOLLIN)
        self._poll.register(self._listener, select.EPOLLIN)
        self._clients: dict[int, _Client] = {}  # the oldest first
        self._resumes_at = 0.0
        """The time at which it accepts again; 0: it does."""
        self._thread = threading.Thread(target=self._serve, name="distrun metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The address at which it listens, `127.0.0.1:9090`."""
        host, port = self._listener.getsockname()[:2]
        return format_endpoint(str(host), int(port))

    def close(self) -> None:
        """Listen no longer."""
        os.eventfd_write(self._end, 1)
        self._thread.join()
        self._drop(len(self._clients))
        self._listener.close()
        self._poll.close()
        os.close(self._end)

    def _serve(self) -> None:
        while True:
            ready = [fd for fd, _ in self._poll.poll(self._pause())]
            if self._end in ready:
                return
            now = time.monotonic()
            if self._resumes_at and now >= self._resumes_at:
                self._resumes_at = 0.0
                self._poll.register(self._listener, select.EPOLLIN)
            for fd in ready:
                if fd in self._clients:
                    self._advance(fd)
            self._drop(sum(client.until <= now for client in self._clients.values()))
            if self._listener.fileno() in ready:
                self._accept()

    def _pause(self) -> float | None:
        """Return how long to wait for events."""
        times = [client.until for client in self._clients.values()][:1]
        if self._resumes_at:
            times.append(self._resumes_at)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in OUT_OF_RESOURCES:
                self._rest()
            return
        fd = connection.fileno()
        if are_scarce(fd):
            connection.close()
            self._rest()
            return
        self._drop(len(self._clients) + 1 - _MOST_CLIENTS)
        connection.setblocking(False)
        self._clients[fd] = _Client(connection)
        self._poll.register(fd, select.EPOLLIN)
        self._advance(fd)  # who waited to be accepted has asked already

    def _rest(self) -> None:
        """Give back all descriptors and accept nobody for a while."""
        self._drop(len(self._clients))
        self._poll.unregister(self._listener)
        self._resumes_at = time.monotonic() + PAUSE

    def _advance(self, fd: int) -> None:
        events = self._clients[fd].advance(self.page)
        if events:
            self._poll.modify(fd, events)
        else:
            self._clients.pop(fd).connection.close()

    def _drop(self, count: int) -> None:
        for fd in list(self._clients)[: max(0, count)]:
            self._clients.pop(fd).connection.close()


class _Client:
    """A client that asks, and then is answered."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.until = time.monotonic() + _SECONDS
        self._request = b""
        self._answer = b""

    def advance(self, page: bytes) -> int:
        """Go on; return the events to wait for, or 0 when there is no more to do."""
        try:
            if not self._answer:
                data = self.connection.recv(_MOST_ASKED - len(self._request))
                self._request += data
                if b"\r\n\r\n" not in self._request:
                    return select.EPOLLIN if data and len(self._request) < _MOST_ASKED else 0
                self._answer = _answer(self._request, page)
            self._answer = self._answer[self.connection.send(self._answer) :]
        except BlockingIOError:
            return select.EPOLLOUT if self._answer else select.EPOLLIN
        except OSError:  # it is gone
            return 0
        return select.EPOLLOUT if self._answer else 0


def _listener(family: int, address: tuple[str, int]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _answer(request: bytes, page: bytes) -> bytes:
    """Return the answer to a request, which begins as in `GET /metrics HTTP/1.1`."""
    method, _, rest = request.partition(b" ")
    status, body = "404 Not Found", b"the metrics are at /metrics\n"
    if method not in (b"GET", b"HEAD"):
        status, body = "405 Method Not Allowed", b"the metrics can be read only\n"
    elif rest.split(b" ")[0].partition(b"?")[0] == b"/metrics":
        status, body = "200 OK", page
    head = f"HTTP/1.0 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return head if method == b"HEAD" else head + body
