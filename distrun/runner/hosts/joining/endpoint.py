"""The endpoint of a rendezvous: where hosts find the launcher, and the key that they share."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass, field

from distrun.host.endpoints import parse_endpoint

DEFAULT_PORT = 29400
"""The port of an endpoint that is given without one, as in torchrun."""
DEFAULT_TIMEOUT = 600.0
"""Seconds for all hosts to join, as in torchrun."""


@dataclass(frozen=True)
class JoinEndpoint:
    """The endpoint of the launcher, with its key and timeout: the same on all hosts, but for `listeners`."""

    address: tuple[str, int]
    """A name or an address of the host that listens, and a port."""
    key: bytes = field(repr=False)
    """A secret of all hosts."""
    timeout: float = DEFAULT_TIMEOUT
    """Seconds for all hosts to join."""
    listeners: tuple[socket.socket, ...] = ()
    """On host 0, sockets that listen at the endpoint already. Empty = it listens at the port on all addresses."""
    rejoins: bool = True
    """Whether a host calls again when its launcher vanishes, since the launcher may be started again."""
    is_encrypted: bool = True
    purpose: str = "joining"
    """Keeps apart rendezvous of different kinds that have the same key."""
    key_name: str = "DISTRUN_KEY"
    """Where users set the key, for messages."""
    timeout_option: str = "--start-timeout"
    """The option that sets the timeout, for messages."""

    @property
    def secret(self) -> bytes:
        """The key for this purpose alone."""
        return hashlib.sha256(f"distrun {self.purpose}\0".encode() + self.key).digest()


def parse_join_endpoint(text: str) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`, or of `HOST` with the default port. Raises ValueError."""
    is_complete = (text.startswith("[") and not text.endswith("]")) or text.count(":") == 1
    return parse_endpoint(text if is_complete else f"[{text.strip('[]')}]:{DEFAULT_PORT}")
