"""An HTTP server for one page, in its own thread, with few clients at a time.

Any machine that reaches the address may connect, as often as it likes. So a client has ten seconds in all, the oldest
client is dropped for the next one, and while the launcher is short of descriptors, all clients are dropped.

Prometheus's own client would be a dependency of the launcher for a format of four rules.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

from distrun.errors import UsageError
from distrun.host.connections.descriptors import OUT_OF_RESOURCES, PAUSE, are_scarce
from distrun.host.endpoints import LAST_PORT, format_endpoint
from distrun.host.numerals import whole_number

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK = "127.0.0.1"
_SECONDS = 10.0  # per client
_MOST_CLIENTS = 16
_MOST_ASKED = 8192  # bytes of a request
_BACKLOG = 64


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `:9090`, which is 127.0.0.1:9090, of `0.0.0.0:9090` or of `[::]:9090`.

    Raises:
        UsageError: the text has none of these forms.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    number = whole_number(port, 0, LAST_PORT)
    if not colon or number is None:
        raise UsageError(
            f"--metrics {text!r} is not an address: give :9090 for this machine alone, 10.0.0.7:9090 for one network, "
            "0.0.0.0:9090 for all, or [::1]:9090"
        )
    return host or LOOPBACK, number


class Server:
    """Serves the latest page at /metrics."""

    def __init__(self, host: str, port: int) -> None:
        """Listen at once, so that an address that cannot be used is known before the job starts.

        Args:
            host: an address of this machine.
            port: the port. 0 = any free port.

        Raises:
            UsageError: the address cannot be used.
        """
        self.page = b""
        """The latest page, which the consumer replaces."""
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
        """The address that it listens on, `127.0.0.1:9090`."""
        host, port = self._listener.getsockname()[:2]
        return format_endpoint(str(host), int(port))

    def close(self) -> None:
        """Stop listening, and drop all clients."""
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
            await asyncio.sleep(0)  # run its task: its request has often come while it waited to be accepted

    def _begin(self, connection: socket.socket) -> None:
        """Answer a client in a task, with a deadline."""
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
                if not data:  # end of file, or the request is too long
                    return
                request += data
            await self._loop.sock_sendall(connection, _answer(request, self.page))
        except OSError:  # the client is gone
            pass

    async def _drop(self, count: int) -> None:
        """Close the connections of the oldest clients."""
        dropped = list(self._clients)[: max(0, count)]
        for task in dropped:
            task.cancel()
        await asyncio.gather(*dropped, return_exceptions=True)

    async def _rest(self) -> None:
        """Drop all clients, and accept none for `PAUSE` seconds."""
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
    """Return the response to a request, which begins as in `GET /metrics HTTP/1.1`."""
    method, _, rest = request.partition(b" ")
    status, body = "404 Not Found", b"the metrics are at /metrics\n"
    if method not in (b"GET", b"HEAD"):
        status, body = "405 Method Not Allowed", b"the metrics can be read only\n"
    elif rest.split(b" ")[0].partition(b"?")[0] == b"/metrics":
        status, body = "200 OK", page
    head = f"HTTP/1.0 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return head if method == b"HEAD" else head + body
