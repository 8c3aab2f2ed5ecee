"""A worker's connection with one server. Its own thread sends requests and receives answers, one after the other."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from distrun.errors import BootstrapError, JobAbortedError, MismatchError, UsageError
from distrun.host.connections.dialer import dial
from distrun.host.connections.tcp_options import set_tcp_options
from distrun.host.endpoints import parse_endpoint
from distrun.methods.servers.protocol import (
    MEANT,
    OPTIMIZER,
    WORKER,
    Header,
    Kind,
    expect,
    is_connected,
    receive_header,
    receive_into,
    receive_text,
    send,
)

_LOOK_AGAIN = 1.0  # seconds between two checks of an idle connection


@dataclass(frozen=True)
class Request:
    """A request to a server, and the memory for its answer."""

    kind: Kind
    number: int = 0
    needed: int = 0
    parts: Sequence[Any] = ()
    """Bytes and arrays to send. They must not change until the answer has arrived."""
    answer: Sequence[Any] = ()
    """Arrays that receive the answer."""
    done: Future[int] = field(default_factory=Future)
    """The number in the answer's header."""


@dataclass(frozen=True)
class Peer:
    """A server's address, and this worker's identity and settings for the connection."""

    server: int
    endpoints: str
    """The server's endpoints, separated by commas."""
    worker: int
    optimizer: int
    key: bytes = field(repr=False)
    is_encrypted: bool = False
    keepalive: float = 0.0
    """Seconds without an answer after which the server's host counts as gone. 0 for never."""
    start_timeout: float = 60.0
    """Seconds that the server has to answer the first time, and again after a restart."""
    is_restarted: bool = False
    """Whether failed servers are restarted."""
    may_move: bool = False
    """Whether a restart may be on another host, with an older state."""


def dialed(peer: Peer, deadline: float) -> socket.socket:
    """Return a new connection with the server `peer`.

    Raises:
        BootstrapError: no process that knows the key answers.
    """
    introduction = {WORKER: peer.worker, OPTIMIZER: peer.optimizer, MEANT: peer.server}
    endpoints = [parse_endpoint(text) for text in peer.endpoints.split(",")]
    made = dial(endpoints, peer.key, introduction, deadline, is_encrypted=peer.is_encrypted).socket
    set_tcp_options(made, peer.keepalive if math.isfinite(peer.keepalive) else 0.0, may_be_unread=True)
    return made


class ServerConnection:
    """Sends requests to one server. If the server is restarted, a request without an answer is sent again."""

    def __init__(self, peer: Peer, layout: bytes) -> None:
        self._peer = peer
        self._layout = layout
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._is_closed = self._is_ending = False
        self._queue: SimpleQueue[Request | None] = SimpleQueue()
        self._failure: Exception | None = None
        self._clock = 0  # the number of steps whose gradients have been acknowledged
        self._was_open = False
        self._thread = threading.Thread(target=self._run, name=f"distrun asks server {peer.server}", daemon=True)
        self._thread.start()

    def ask(self, request: Request) -> Future[int]:
        """Queue `request`, to be sent after earlier ones are answered. Return the future of its answer.

        Raises:
            UsageError: `close` has been called.
        """
        if self._is_ending:
            raise UsageError("this worker has left its parameter servers: close() comes last")
        self._queue.put(request)
        return request.done

    def close(self, abandon: bool = False) -> None:
        """Close the connection, after all queued requests, or at once if `abandon`."""
        self._is_ending = True
        self._queue.put(None)
        if abandon:
            with self._lock:
                self._is_closed = True
                if self._socket is not None:
                    with suppress(OSError):  # the server has closed it
                        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        while (request := self._next()) is not None:
            if self._failure is None:
                try:
                    request.done.set_result(self._answered(request))
                    continue
                except Exception as error:  # raised in the thread that waits
                    self._failure = error
            request.done.set_exception(self._failure)
        self._disconnect()

    def _next(self) -> Request | None:
        """Wait for the next request.

        In the meantime, reconnect with a server that has moved, to send it this worker's clock: its state may be older,
        and other workers may wait for this clock, while this worker in turn has no request until they continue.
        """
        while self._peer.may_move:
            try:
                return self._queue.get(timeout=_LOOK_AGAIN)
            except Empty:
                is_here = self._socket is not None and is_connected(self._socket)
                if self._was_open and self._failure is None and not is_here:
                    self._come_again()
        return self._queue.get()

    def _come_again(self) -> None:
        self._disconnect()
        try:
            self._connect(time.monotonic() + self._peer.start_timeout)
        except BootstrapError as error:
            self._failure = JobAbortedError(f"server {self._peer.server} does not answer: {error}")
        except (OSError, MismatchError) as error:
            self._disconnect()
            self._failure = error if isinstance(error, MismatchError) else None  # otherwise the next check tries again

    def _answered(self, request: Request) -> int:
        """Send `request`, and return the number in the answer."""
        # Before its first answer, the server may still be starting.
        deadline = time.monotonic() + self._peer.start_timeout
        while True:
            try:
                connection = self._socket or self._connect(deadline)
                send(connection, request.kind, request.number, request.needed, request.parts)
                number = self._receive(connection, request)
                if request.kind == Kind.PUSH:
                    self._clock = request.number + 1
                return number
            except BootstrapError as error:
                raise JobAbortedError(f"server {self._peer.server} does not answer: {error}") from None
            except OSError as error:
                self._disconnect()
                if self._is_closed or not self._peer.is_restarted:
                    reason = error.strerror or error
                    raise JobAbortedError(f"server {self._peer.server} is gone: {reason}") from None
                deadline = time.monotonic() + self._peer.start_timeout

    def _receive(self, connection: socket.socket, request: Request) -> int:
        header = expected(connection)
        expect(header, sum(array.nbytes for array in request.answer))
        for array in request.answer:
            receive_into(connection, array)
        return header.number

    def _connect(self, deadline: float) -> socket.socket:
        """Connect, and open the share."""
        made = dialed(self._peer, deadline)
        with self._lock:
            self._socket = made
            if self._is_closed:
                raise ConnectionAbortedError("the job ends")
        send(made, Kind.OPEN, self._clock, int(self._was_open), [self._layout])
        expect(expected(made), 0)
        self._was_open = True
        return made

    def _disconnect(self) -> None:
        with self._lock:
            connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()


def expected(connection: socket.socket) -> Header:
    """Return the header of an answer.

    Raises:
        MismatchError: the server has refused the request.
    """
    header = receive_header(connection)
    if header.kind == Kind.ERROR:
        raise MismatchError(receive_text(connection, header.length).decode(errors="replace"))
    return header
