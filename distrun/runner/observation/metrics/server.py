"""The server of one page, on threads of its own."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer

from distrun.errors import UsageError
from distrun.host.endpoints import format_endpoint
from distrun.runner.observation.metrics.text import CONTENT_TYPE

_SECONDS = 10.0  # for which a client may be slow


class Server:
    """Gives whoever asks for /metrics the page of the moment."""

    def __init__(self, host: str, port: int) -> None:
        """Listen at once, so that an address that cannot be used is known before the job starts.

        Args:
            host: an address of this machine.
            port: the port; 0: any that is free.

        Raises:
            UsageError: it cannot be used.
        """
        self.page = b""
        """The page of the moment; whoever makes pages puts them here."""
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _server_class(family)((str(address[0]), int(address[1])), self._handler())
        except OSError as error:
            raise UsageError(
                f"--metrics cannot listen at {format_endpoint(host, port)}: {error.strerror}; give another address or "
                "port"
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="distrun metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The address at which it listens, `127.0.0.1:9090`."""
        host, port = self._server.server_address[:2]
        return format_endpoint(str(host), int(port))

    def close(self) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _SECONDS

            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/metrics"
                body = server.page if found else b"the metrics are at /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        return Handler


def _server_class(family: int) -> type[ThreadingTCPServer]:
    class Own(ThreadingTCPServer):  # HTTPServer would ask a name server for this machine's name
        address_family = socket.AddressFamily(family)
        allow_reuse_address = True
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: object, client_address: object) -> None:
            """Print nothing: a client went away."""

    return Own
