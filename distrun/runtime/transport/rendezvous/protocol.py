"""The protocol of the rendezvous across hosts: rank 0's endpoint, the members, and the messages.

Each rank except rank 0 makes two connections with rank 0. On the *control* connection, it introduces itself and sends
the endpoint where it listens. The *alarm* connection is used after the rendezvous. When all ranks have connected, rank
0 sends the table of members over the control connections, or a sentence about why the job cannot start. The table is
compressed, since every rank receives all of it.

    rank 0 to the others    length, compressed {"members": [[rank, host, hostname, pid, address, port, further], ...],
                                                "agreed": {...}, "is_relayed": ...}
                            length, compressed {"error": "..."}

In a large job, one rank of each host, its *relay*, does this for the others of its host as well: it reports to rank 0
which ranks have connected, with their endpoints, and which have ended, and passes on rank 0's messages to them.

    a relay to rank 0       length, compressed {"came": [{"size": ..., "member": [...]}, ...], "ended": [rank, ...]}
    a rank to its relay     {"size": ..., "member": [...]}, as an introduction
    a relay to a rank       a byte, with the listening sockets of the rank
                            length, compressed {"endpoint": [address, port], "key": "..."}: rank 0, as seen from there
                            rank 0's message, unchanged
"""

from __future__ import annotations

import json
import socket
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distrun.contract.elastic.interruption import Interruption, await_readable
from distrun.errors import BootstrapError, UsageError
from distrun.host.connections.listener import Listener
from distrun.host.connections.tcp_options import DEAD_HOST_TIMEOUT
from distrun.host.endpoints import LAST_PORT, parse_endpoint

CONTROL, ALARM, DATA = "control", "alarm", "data"
"""The purposes of connections: the two with rank 0, and later ones with other ranks."""
ERROR_TIMEOUT = 2.0
"""Seconds that a rank has to receive the sentence that the job cannot start."""

_LENGTH = struct.Struct("<I")
_MAX_MESSAGE = 1 << 26


@dataclass(frozen=True)
class RendezvousEndpoint:
    """The addresses where rank 0 listens for the other ranks, and how both sides get the job key."""

    addresses: tuple[tuple[str, int], ...]
    """Names or addresses, and ports, in order of preference. Rank 0 listens at all that are its own."""
    key: bytes | None = None
    """The job key. None if `greeting` or `opener` provides it."""
    greeting: Callable[[], tuple[bytes, bytes]] | None = None
    """On rank 0 of a job without a given key: returns a greeting and a new key, which the greeting reveals only to
    processes of this job's user."""
    opener: Callable[[bytes], bytes] | None = None
    """On the other ranks: returns the key in a greeting, which may come from any process. Raises a DistrunError if it
    cannot."""

    is_encrypted: bool = False
    """Whether all connections between hosts are encrypted. It is the same on all ranks."""

    @property
    def known_key(self) -> bytes:
        """The job key.

        Raises:
            BootstrapError: there is no key.
        """
        if self.key is None:
            raise BootstrapError(
                "the ranks have no key by which they could know each other: start the script with `distrun`"
            )
        return self.key


def parse_endpoints(text: str) -> tuple[tuple[str, int], ...]:
    """Return the endpoints in a text such as `10.0.0.1:40123,[fd00::1]:40123`. Host names are allowed, too.

    Raises:
        UsageError: the text has another form.
    """
    return tuple(_parse_one(part.strip(), text) for part in text.split(","))


def _parse_one(part: str, text: str) -> tuple[str, int]:
    try:
        return parse_endpoint(part)
    except ValueError:
        raise UsageError(
            f"the rendezvous {text!r} has {part!r} in it, which is not an address and a port from 1 to {LAST_PORT} "
            "such as 10.0.0.1:40123 or [fd00::1]:40123: start the script with `distrun`, which chooses them"
        ) from None


@dataclass(frozen=True)
class Member:
    """One rank as the others know it."""

    rank: int
    host: str
    """Identifies the host: equal for ranks that share one."""
    hostname: str
    """The host's name in messages to users."""
    pid: int
    address: str
    """The numeric address where it listens for data links. For rank 0, the address where *this* rank reached it."""
    port: int
    further: str = ""
    """Further addresses where it listens, in networks that the user named, such as `10.1.0.1/24,10.2.0.1/24`."""

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on host {self.hostname})"


@dataclass(frozen=True)
class Addresses:
    """The addresses and the key for connections that are made after the rendezvous."""

    members: tuple[Member, ...]
    """All ranks, in rank order. Their ports are from the rendezvous and no longer in use."""
    own: tuple[str, ...]
    """The numeric addresses that the others use for this rank."""
    key: bytes
    is_encrypted: bool
    keepalive: float
    """Seconds after which a host that does not answer counts as gone. 0 for never."""


@dataclass
class Participant:
    """A rank in the rendezvous, as the rendezvous begins."""

    size: int
    """The number of ranks."""
    mine: Member
    """This rank, not yet with an address."""
    endpoint: RendezvousEndpoint
    timeout: float
    """Seconds to wait for the slowest rank."""
    interruption: Interruption | None = None
    keepalive: float = DEAD_HOST_TIMEOUT

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.timeout


@dataclass
class Rendezvous:
    """The result of the rendezvous on one rank. All connections are blocking, without a timeout, with TCP options
    set."""

    members: tuple[Member, ...]
    """All ranks, in rank order."""
    agreed: dict[str, int]
    """The numbers that rank 0 has decided for all."""
    control: dict[int, socket.socket]
    """On rank 0, the connections with the ranks on other hosts that connected with it, by rank. On such a rank, the
    connection with rank 0. Empty on all others."""
    alarms: dict[int, socket.socket]
    """The alarm connections, with the same ranks."""
    listener: Listener
    """The listener for data links, still open."""
    key: bytes
    """The job key."""
    is_encrypted: bool = False
    """Whether connections with other hosts are encrypted."""
    is_relayed: bool = False
    """Whether a relay introduced some ranks on other hosts, so that rank 0 has no connections with them."""

    def addresses(self, keepalive: float) -> Addresses:
        """Return the addresses for later connections. Call it before the listener is closed."""
        own = tuple(dict.fromkeys(address for address, _ in self.listener.endpoints))  # rank 0 may have several ports
        return Addresses(self.members, own, self.key, self.is_encrypted, keepalive)

    def close(self) -> None:
        """Close all connections, and stop listening."""
        for connection in [*self.control.values(), *self.alarms.values()]:
            connection.close()
        self.listener.close()


def pack_message(message: dict[str, Any]) -> bytes:
    """Return `message` encoded for sending."""
    text = zlib.compress(json.dumps(message, separators=(",", ":")).encode())
    return _LENGTH.pack(len(text)) + text


def unpack_message(packed: bytes) -> dict[str, Any]:
    """Return the message that `pack_message` encoded."""
    return dict(json.loads(zlib.decompressobj().decompress(packed[_LENGTH.size :], _MAX_MESSAGE)))


def send_message(connection: socket.socket, message: dict[str, Any], timeout: float) -> None:
    """Send `message` within `timeout` seconds. Raises `OSError`."""
    connection.settimeout(timeout)
    connection.sendall(pack_message(message))


def receive_packed(connection: socket.socket, deadline: float, interruption: Interruption | None = None) -> bytes:
    """Return a message as `pack_message` encoded it, received until the monotonic time `deadline`.

    Afterwards the connection is blocking, without a timeout.

    Raises:
        OSError: no message arrived in time, or the connection ended.
        BootstrapError: the wait was interrupted.
    """
    await_readable(connection, deadline, interruption)
    head = _receive_exactly(connection, _LENGTH.size, deadline)
    packed = head + _receive_exactly(connection, _size(head), deadline)
    connection.settimeout(None)
    return packed


class MessageReader:
    """Receives messages on a connection without blocking."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = bytearray()

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived, without waiting. Raises `OSError` if the connection has ended."""
        timeout = self._connection.gettimeout()
        self._connection.setblocking(False)
        try:
            while part := self._connection.recv(1 << 16):
                self._data += part
        except BlockingIOError:
            self._connection.settimeout(timeout)
            return self._take()
        raise ConnectionError("it closed the connection")

    def _take(self) -> list[dict[str, Any]]:
        messages = []
        while len(self._data) >= (end := _LENGTH.size) and len(self._data) >= (end := end + _size(self._data)):
            messages.append(unpack_message(bytes(self._data[:end])))
            del self._data[:end]
        return messages


def _size(head: bytes | bytearray) -> int:
    """Return the number of bytes of a message after its length, which is `head`."""
    (size,) = _LENGTH.unpack_from(head)
    if size > _MAX_MESSAGE:
        raise ConnectionError(f"a message of {size} bytes")
    return int(size)


def _receive_exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionError("it closed the connection")
        data += part
    return bytes(data)
