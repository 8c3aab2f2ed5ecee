"""The server's end of the measurements: a thread of the probe that listens for the probe of another host."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Any

from distrun.errors import UsageError
from distrun.host.connections.tcp_info import SentPackets
from distrun.host.endpoints import bind_free
from distrun.runner.protocol.handshake import HostError
from distrun.tools.doctor.network import packet_sizes
from distrun.tools.doctor.network.authentication import challenge
from distrun.tools.doctor.network.transfers import IDLE_TIMEOUT, drain, pump

PING, SEND, RECEIVE, EXCHANGE = b"P", b"S", b"R", b"E"
"""The requests of a client: measure round trips, send, receive, or exchange messages of rising sizes."""
PURPOSE = struct.Struct("<cI")
"""A request, and the bytes per second to transfer, or 0 for as fast as it goes."""


class BenchmarkServer:
    """Serves one client after the other."""

    def __init__(self, address: str, key: bytes) -> None:
        """Listen on one address of this host, for clients that know the key.

        Raises:
            HostError: it cannot listen there.
        """
        self._key = key
        self._rate: float | None = None
        self._packets = SentPackets(0, 0)
        self._socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            bind_free(self._socket, address)
            self._socket.listen()
        except UsageError as error:
            self._socket.close()
            raise HostError(str(error)) from None
        except OSError as error:
            self._socket.close()
            raise HostError(f"it cannot listen on {address}: {error.strerror}") from None
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="distrun doctor server", daemon=True)
        self._thread.start()

    def close(self) -> dict[str, Any]:
        """Stop listening, and return the measurements.

        Returns:
            `rate`: the bytes per second that came from the client, None if none came. `sent`, `lost`: the number of
            packets to the client, and how many of them had to be sent again.
        """
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._thread.join(IDLE_TIMEOUT + 1)
        self._socket.close()
        return {"rate": self._rate, "sent": self._packets.sent, "lost": self._packets.lost}

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer, suppress(OSError):
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if challenge(peer, self._key):
                    self._serve_peer(peer)

    def _serve_peer(self, peer: socket.socket) -> None:
        peer.settimeout(IDLE_TIMEOUT)
        purpose = peer.recv(PURPOSE.size, socket.MSG_WAITALL)
        if len(purpose) < PURPOSE.size:
            return
        what, pace = PURPOSE.unpack(purpose)
        match what:
            case b"P":
                while byte := peer.recv(1):
                    peer.sendall(byte)
            case b"S":
                self._rate = drain(peer, bool(pace))
            case b"R":
                self._packets = pump(peer, pace)
            case b"E":
                packet_sizes.serve(peer, IDLE_TIMEOUT)
