"""The protocol of the rendezvous across hosts: where rank 0 is, who the members are, and the messages.

Each rank but rank 0 makes two connections with rank 0: on the *control* connection it introduces itself and says where
it listens itself; the *alarm* is for later. When all ranks have come, rank 0 sends the table of members over the
control connections, or a sentence why the job cannot start. It is compressed, since each of the ranks gets all of it.

    rank 0 to the others    length, compressed {"members": [[rank, host, hostname, pid, address, port, further], ...],
                                                "agreed": {...}, "is_relayed": ...}
                            length, compressed {"error": "..."}

In a large job one rank of each host, its *relay*, does so for the others of its host as well: it tells rank 0 who has
come, with where they listen, and who has ended, and hands on to them what rank 0 says.

    a relay to rank 0       length, compressed {"came": [{"size": ..., "member": [...]}, ...], "ended": [rank, ...]}
    a rank to its relay     {"size": ..., "member": [...]}, as an introduction
    a relay to a rank       a byte, with the sockets at which the rank is to listen
                            length, compressed {"endpoint": [address, port], "key": "..."}: rank 0's, as it was reached
                            what rank 0 says, unchanged
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
from distrun.host.endpoints import LAST_PORT, parse_endpoint

CONTROL, ALARM, DATA = "control", "alarm", "data"
"""The purposes of connections: the two with rank 0, and later ones with other ranks."""
ERROR_TIMEOUT = 2.0
"""Seconds within which a rank takes the sentence that the job cannot start."""

_LENGTH = struct.Struct("<I")
_MAX_MESSAGE = 1 << 26


@dataclass(frozen=True)
class RendezvousEndpoint:
    """Where rank 0 listens for the other ranks, and how both sides come by the key."""

    addresses: tuple[tuple[str, int], ...]
    """Names or addresses, and ports, in order of preference. Rank 0 listens at all that are its own."""
    key: bytes | None = None
    """The job key; None where there are hooks."""
    greeting: Callable[[], tuple[bytes, bytes]] | None = None
    """On rank 0 of a job that was given no key: makes a key and the greeting that tells it to those who may know
    it."""
    opener: Callable[[bytes], bytes] | None = None
    """On the others: finds the key in a greeting, which may come from anybody; raises a DistrunError when it cannot."""

    is_encrypted: bool = False
    """Whether all connections between hosts are encrypted; the same on all ranks."""

    @property
    def known_key(self) -> bytes:
        """The job key.

        Raises:
            BootstrapError: there is none.
        """
        if self.key is None:
            raise BootstrapError(
                "the ranks have no key by which they could know each other: start the script with `distrun`"
            )
        return self.key


def parse_endpoints(text: str) -> tuple[tuple[str, int], ...]:
    """Return the addresses of `10.0.0.1:40123,[fd00::1]:40123`; the name of a host may stand for an address.

    Raises:
        UsageError: it is something else.
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
    """The host's name for people."""
    pid: int
    address: str
    """Where it listens for data links, in digits. Rank 0's is the one at which *this* rank reached it."""
    port: int
    further: str = ""
    """Further addresses where it listens, in networks that the user has named, as `10.1.0.1/24,10.2.0.1/24`."""

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on host {self.hostname})"


@dataclass(frozen=True)
class Addresses:
    """Where the ranks of all hosts listen when they do, and the secret by which they know each other."""

    members: tuple[Member, ...]
    """All ranks, in rank order; their ports are those of the rendezvous, where nobody listens any more."""
    own: tuple[str, ...]
    """The addresses at which the others look for us, in digits."""
    key: bytes
    is_encrypted: bool
    keepalive: float
    """Seconds after which a host that does not answer counts as gone; 0: never."""


@dataclass
class Rendezvous:
    """The result of the rendezvous on one rank. All connections block, have no timeout, and have our TCP options."""

    members: tuple[Member, ...]
    """All ranks, in rank order."""
    agreed: dict[str, int]
    """The numbers that rank 0 has decided for all."""
    control: dict[int, socket.socket]
    """On rank 0: one connection per rank on another host that has introduced itself. On such a rank: the one to rank 0.
    Elsewhere: none."""
    alarms: dict[int, socket.socket]
    """A second connection with the same ranks."""
    listener: Listener
    """Where this rank listens for data links; still open."""
    key: bytes
    """The job key."""
    is_encrypted: bool = False
    """Whether connections with other hosts are encrypted."""
    is_relayed: bool = False
    """Whether there are ranks on other hosts with which rank 0 has no connection, since others introduced them."""

    def addresses(self, keepalive: float) -> Addresses:
        """Return what is worth knowing when nobody listens any more; called before the listener is closed."""
        own = tuple(dict.fromkeys(address for address, _ in self.listener.endpoints))  # rank 0 may have several ports
        return Addresses(self.members, own, self.key, self.is_encrypted, keepalive)

    def close(self) -> None:
        """Close all connections, and stop listening."""
        for connection in [*self.control.values(), *self.alarms.values()]:
            connection.close()
        self.listener.close()


def pack_message(message: dict[str, Any]) -> bytes:
    """Return a message as it is sent."""
    text = zlib.compress(json.dumps(message, separators=(",", ":")).encode())
    return _LENGTH.pack(len(text)) + text


def unpack_message(packed: bytes) -> dict[str, Any]:
    """Return the message that was packed."""
    return dict(json.loads(zlib.decompressobj().decompress(packed[_LENGTH.size :], _MAX_MESSAGE)))


def send_message(connection: socket.socket, message: dict[str, Any], timeout: float) -> None:
    """Send a message within so many seconds; raises `OSError`."""
    connection.settimeout(timeout)
    connection.sendall(pack_message(message))


def receive_packed(connection: socket.socket, deadline: float, interruption: Interruption | None = None) -> bytes:
    """Receive a message, as it was sent, until the monotonic time `deadline`; the connection blocks without a timeout
    afterwards.

    Raises:
        OSError: nothing came in time, or the connection ended.
        BootstrapError: the wait was interrupted.
    """
    await_readable(connection, deadline, interruption)
    head = _receive_exactly(connection, _LENGTH.size, deadline)
    packed = head + _receive_exactly(connection, _size(head), deadline)
    connection.settimeout(None)
    return packed


class MessageReader:
    """Receives messages on a connection as they come."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = bytearray()

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have come, without waiting; raises `OSError` when the connection has ended."""
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
    """Return the number of bytes that follow the head of a message."""
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
