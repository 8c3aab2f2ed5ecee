"""The server of one page, on a thread of its own, which serves all clients and keeps few of them.

Any machine that reaches the address may connect, as often as it likes: a client has ten seconds in all, the oldest
makes room for the next, and where the launcher has few descriptors left, there are no clients.

Prometheus's own client would be a dependency of the launcher for a format of four rules.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

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
        self._clients: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run, name="distrun metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The address at which it listens, `127.0.0.1:9090`."""
        host, port = self._listener.getsockname()[:2]
        return format_endpoint(str(host), int(port))

    def close(self) -> None:
        """Listen no longer."""
        self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serving)
        self._loop.run_until_complete(self._drop(len(self._clients)))
        self._loop.close()

    async def _serve(self) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    await self._rest()
                continue
            if are_scarce(connection.fileno()):
                connection.close()
                await self._rest()
                continue
            await self._drop(len(self._clients) + 1 - _MOST_CLIENTS)
            self._begin(connection)
            await asyncio.sleep(0)  # a client that waited to be accepted has asked already, and is answered now

    def _begin(self, connection: socket.socket) -> None:
        """Answer a client, for as long as it may take."""
        task = self._loop.create_task(self._answer(connection))
        deadline = self._loop.call_later(_SECONDS, task.cancel)
        self._clients[task] = None

        def end(_: object) -> None:
            deadline.cancel()
            connection.close()
            del self._clients[task]

        task.add_done_callback(end)

    async def _answer(self, connection: socket.socket) -> None:
        request = b""
        try:
            while b"\r\n\r\n" not in request:
                data = await self._loop.sock_recv(connection, _MOST_ASKED - len(request))
                if not data:  # it asks no more, or too much
                    return
                request += data
            await self._loop.sock_sendall(connection, _answer(request, self.page))
        except OSError:  # it is gone
            pass

    async def _drop(self, count: int) -> None:
        """Close the connections of the oldest clients."""
        dropped = list(self._clients)[: max(0, count)]
        for task in dropped:
            task.cancel()
        await asyncio.gather(*dropped, return_exceptions=True)

    async def _rest(self) -> None:
        """Give back all descriptors and accept no client for a while."""
        await self._drop(len(self._clients))
        await asyncio.sleep(PAUSE)


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
