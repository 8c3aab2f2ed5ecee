"""Measuring the network between two hosts, each end of a TCP connection in the probe of its host.

One probe listens, the other connects, once for each thing to measure. Both prove to each other that they know the key
of this measurement. Before that, no more than a proof of fixed size is read, and only for a limited time.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import socket
import statistics
import struct
import threading
import time
from contextlib import suppress

from distrun.errors import UsageError
from distrun.host.endpoints import bind_free
from distrun.runner.protocol.handshake import HostError

_CONNECT = 3.0  # seconds
_PROOF = 1.0  # seconds for all of a proof
_SILENCE = 2.0  # seconds without a byte after which nothing more will come
_PINGING = 0.05  # seconds of round trips, or as long as `_MIN_PINGS` take
_MIN_PINGS = 3
_WARMING = 0.05  # seconds of data that do not count: buffers and the congestion window fill
_MEASURING = 0.25
_MAX_SENDING = 3.0  # seconds for which data is sent in the worst case
_BLOCK = 1 << 18
_NONCE = 32
_PING, _SEND, _RECEIVE = b"P", b"S", b"R"  # what the client asks for: round trips, to send, or to receive
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing throws away what is in flight


class BenchmarkServer:
    """The server's end, in a thread."""

    def __init__(self, address: str, key: bytes) -> None:
        """Listen on one address of this host, for clients that know the key.

        Raises:
            HostError: that cannot be done.
        """
        self._key = key
        self._rate: float | None = None
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

    def close(self) -> float | None:
        """Stop listening; return the bytes per second that came from the client, None if none came."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._thread.join(_MAX_SENDING)
        self._socket.close()
        return self._rate

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
        peer.settimeout(_SILENCE)
        match peer.recv(1):
            case b"P":
                while byte := peer.recv(1):
                    peer.sendall(byte)
            case b"S":
                self._rate = drain(peer)
            case b"R":
                pump(peer)


def measure(address: str, port: int, key: bytes) -> dict[str, str | float | None]:
    """Measure everything from the client's end.

    Returns:
        `address`: ours on this connection; `round_trip`: the median in seconds; `rate`: the bytes per second that came
        from the server, None when large packets do not arrive.

    Raises:
        HostError: the server cannot be reached.
    """
    with _connect(address, port, key, _PING) as peer:
        ours = str(peer.getsockname()[0])
        round_trip = _ping(peer)
    with _connect(address, port, key, _SEND) as peer:
        pump(peer)
    with _connect(address, port, key, _RECEIVE) as peer:
        return {"address": ours, "round_trip": round_trip, "rate": drain(peer)}


def connect(address: str, port: int, key: bytes) -> None:
    """Connect to a server, and leave.

    Raises:
        HostError: the server cannot be reached.
    """
    _connect(address, port, key, _PING).close()


def _connect(address: str, port: int, key: bytes, purpose: bytes) -> socket.socket:
    try:
        peer = socket.create_connection((address, port), _CONNECT)
    except TimeoutError:
        raise HostError(f"no answer within {_CONNECT:g} s") from None
    except OSError as error:
        raise HostError((error.strerror or str(error)).lower()) from None
    try:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not respond(peer, key):
            raise HostError("another program answers there")
        peer.settimeout(_SILENCE)
        peer.sendall(purpose)
    except OSError as error:
        peer.close()
        raise HostError(f"the connection broke off: {error.strerror or error}") from None
    except BaseException:
        peer.close()
        raise
    return peer


# --- authentication


def challenge(peer: socket.socket, key: bytes) -> bool:
    """Prove the key as the server; False when the client does not know it."""
    deadline = time.monotonic() + _PROOF
    ours = os.urandom(_NONCE)
    peer.settimeout(_PROOF)
    peer.sendall(ours)
    answer = _read(peer, _NONCE + hashlib.sha256().digest_size, deadline)
    theirs, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, _proof(key, b"client", ours, theirs)):
        return False
    peer.sendall(_proof(key, b"server", theirs, ours))
    return True


def respond(peer: socket.socket, key: bytes) -> bool:
    """Prove the key as the client; False when the server does not know it."""
    deadline = time.monotonic() + 2 * _PROOF  # a stranger may be served before us
    theirs = _read(peer, _NONCE, deadline)
    ours = os.urandom(_NONCE)
    peer.sendall(ours + _proof(key, b"client", theirs, ours))
    proof = _read(peer, hashlib.sha256().digest_size, deadline)
    return hmac.compare_digest(proof, _proof(key, b"server", ours, theirs))


def _proof(key: bytes, role: bytes, theirs: bytes, own: bytes) -> bytes:
    return hmac.digest(key, role + theirs + own, "sha256")


def _read(peer: socket.socket, size: int, deadline: float) -> bytes:
    """Return so many bytes, fewer when the peer has gone. Raises OSError when they do not come in time."""
    data = b""
    while len(data) < size:
        peer.settimeout(max(0.001, deadline - time.monotonic()))
        piece = peer.recv(size - len(data))
        if not piece:
            break
        data += piece
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    return data


# --- measuring


def _ping(peer: socket.socket) -> float | None:
    """Return the median round trip of one byte, in seconds."""
    times: list[float] = []
    start = time.perf_counter()
    with suppress(OSError):
        while len(times) < _MIN_PINGS or time.perf_counter() - start < _PINGING:
            before = time.perf_counter()
            peer.sendall(b".")
            if not peer.recv(1):
                break
            times.append(time.perf_counter() - before)
    return statistics.median(times) if times else None


def pump(peer: socket.socket) -> None:
    """Send until the receiver has had enough."""
    block = bytes(_BLOCK)
    deadline = time.monotonic() + _MAX_SENDING
    with suppress(OSError):
        while time.monotonic() < deadline:
            peer.sendall(block)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def drain(peer: socket.socket) -> float | None:
    """Receive for a while, then reset the connection; return bytes per second, None when nothing came."""
    buffer = bytearray(4 * _BLOCK)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    arrivals: list[tuple[float, int]] = []
    with suppress(OSError):
        while not arrivals or arrivals[-1][0] - arrivals[0][0] < _WARMING + _MEASURING:
            count = peer.recv_into(buffer)
            if not count:
                break
            arrivals.append((time.perf_counter(), count))
    return rate(arrivals, _WARMING)


def rate(arrivals: list[tuple[float, int]], warming: float) -> float | None:
    """Return bytes per second from (time, bytes) of each arrival.

    The first `warming` seconds do not count, unless too little came later. The first arrival that counts starts the
    clock, so its own bytes do not count.
    """
    late = [item for item in arrivals if item[0] - arrivals[0][0] >= warming]
    counted = late if len(late) > 1 else arrivals
    seconds = counted[-1][0] - counted[0][0] if counted else 0.0
    return sum(count for _, count in counted[1:]) / seconds if seconds else None
