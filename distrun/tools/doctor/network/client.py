"""The client's end of the measurements: one connection to the server for each kind of measurement."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from distrun.host.connections.tcp_info import TcpInfo
from distrun.runner.protocol.handshake import HostError
from distrun.tools.doctor.network import packet_sizes
from distrun.tools.doctor.network.authentication import respond
from distrun.tools.doctor.network.server import EXCHANGE, PING, PURPOSE, RECEIVE, SEND
from distrun.tools.doctor.network.transfers import IDLE_TIMEOUT, drain, ping, pump, reset_on_close

_CONNECT = 4.0  # seconds: the kernel sends at least three SYN packets in this time
_TRIES = 3  # to connect to a server that has been reached before, since packets may be lost


def measure(address: str, port: int, key: bytes) -> dict[str, Any]:
    """Measure round trips, and transfers in both directions as fast as they go.

    Returns:
        `address`: this host's on the connection. `round_trip`: the median in seconds. `rate`: the bytes per second that
        came from the server, None if none came. `sent`, `lost`: the number of packets to the server, and how many of
        them had to be sent again.

    Raises:
        HostError: the server cannot be reached.
    """
    with _connect(address, port, key, PING) as peer:
        ours = str(peer.getsockname()[0])
        round_trip = ping(peer)
    return {"address": ours, "round_trip": round_trip, **transfer(address, port, key)}


def transfer(address: str, port: int, key: bytes, to_server: int = 0, from_server: int = 0) -> dict[str, Any]:
    """Send and receive, and return the `rate`, `sent` and `lost` of `measure`.

    The server has been reached before. `to_server` and `from_server` are bytes per second, or 0 for as fast as it goes.

    Raises:
        HostError: the server cannot be reached.
    """
    with _connect(address, port, key, SEND, to_server, _TRIES) as peer:
        packets = pump(peer, to_server)
    with _connect(address, port, key, RECEIVE, from_server, _TRIES) as peer:
        return {"rate": drain(peer, bool(from_server)), "sent": packets.sent, "lost": packets.lost}


def largest_packet(address: str, port: int, key: bytes, is_sent: bool) -> dict[str, int] | None:
    """Return the members of `PacketSizes` for packets to the server or from it, or None if they are not certain.

    Raises:
        HostError: the server cannot be reached.
    """
    with _connect(address, port, key, EXCHANGE, tries=_TRIES) as peer:
        info = TcpInfo.of(peer)
        most, headers = info.largest, info.headers(peer.family)

    def passing(sizes: Sequence[int]) -> int:
        with _connect(address, port, key, EXCHANGE, tries=_TRIES) as peer:
            reset_on_close(peer)
            return packet_sizes.exchange(peer, sizes, is_sent)

    found = packet_sizes.search(passing, most)
    return None if found is None else {"full": most + headers, "passing": found + headers if found else 0}


def connect(address: str, port: int, key: bytes, has_loss: bool) -> None:
    """Connect to a server and disconnect. Try several times if packets are known to be lost.

    Raises:
        HostError: the server cannot be reached.
    """
    _connect(address, port, key, PING, tries=_TRIES if has_loss else 1).close()


def _connect(address: str, port: int, key: bytes, purpose: bytes, pace: int = 0, tries: int = 1) -> socket.socket:
    for _ in range(tries - 1):
        try:
            return _connect_once(address, port, key, PURPOSE.pack(purpose, pace))
        except TimeoutError:
            continue
    try:
        return _connect_once(address, port, key, PURPOSE.pack(purpose, pace))
    except TimeoutError as error:
        raise HostError(str(error)) from None


def _connect_once(address: str, port: int, key: bytes, purpose: bytes) -> socket.socket:
    """Raises HostError, or TimeoutError with a reason when another try may help."""
    try:
        peer = socket.create_connection((address, port), _CONNECT)
    except TimeoutError:
        raise TimeoutError(f"no answer within {_CONNECT:g} s") from None
    except OSError as error:
        raise HostError((error.strerror or str(error)).lower()) from None
    try:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not respond(peer, key):
            raise HostError("another program answers there")
        peer.settimeout(IDLE_TIMEOUT)
        peer.sendall(purpose)
    except OSError as error:
        peer.close()
        raise TimeoutError(f"the connection broke off: {error.strerror or error}") from None
    except BaseException:
        peer.close()
        raise
    return peer
