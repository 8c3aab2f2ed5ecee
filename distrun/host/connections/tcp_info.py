"""TCP_INFO, by which the kernel tells whether what is sent on a TCP connection is answered."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

# tcpi_retransmits, tcpi_probes; tcpi_unacked; tcpi_last_data_recv, tcpi_last_ack_recv. Milliseconds.
_INFO = struct.Struct("=2xBB20xI24xII")


@dataclass(frozen=True)
class TcpInfo:
    """A connection at this moment."""

    retries: int
    """How often what was sent first has been sent again, or the other side's window been asked for, in vain."""
    unanswered: int
    """The packets that are sent and not acknowledged."""
    silence: float
    """Seconds since anything came, be it an acknowledgement."""

    @classmethod
    def of(cls, connection: socket.socket) -> TcpInfo:
        """Ask the kernel; raises OSError when the connection is closed."""
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        retransmits, probes, unacked, last_data, last_ack = _INFO.unpack(data)
        return cls(retransmits + probes, unacked, min(last_data, last_ack) / 1000)

    def is_dead(self, silence: float) -> bool:
        """Whether what is sent has been unanswered for so many seconds.

        A host that is alive answers even when its process does not read. Before anything is sent nothing has to come,
        apart from answers to keepalives.
        """
        return self.retries > 0 and self.silence >= silence
