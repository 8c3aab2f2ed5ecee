"""The place where the hosts of a job meet, and the key by which they know each other."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass, field


@dataclass(frozen=True)
class JoinEndpoint:
    """The place of the launcher, with the key and the time for it: the same on all hosts, but for `listeners`."""

    endpoint: tuple[str, int]
    """A name or an address of host 0, and the port at which it listens."""
    key: bytes = field(repr=False)
    """A secret of all hosts."""
    timeout: float = 600.0
    """Seconds in which all hosts have to come."""
    listeners: tuple[socket.socket, ...] = ()
    """On host 0, sockets that listen at the endpoint already; none = it listens at the port on all addresses."""
    rejoins: bool = True
    """Whether a host calls again when its launcher is gone without a word, as it may be started again."""

    @property
    def secret(self) -> bytes:
        """The key for this purpose alone."""
        return hashlib.sha256(b"distrun joining\0" + self.key).digest()
