"""TCP_INFO, by which the kernel tells whether what is sent on a TCP connection is answered, and what was lost."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

# struct tcp_info of linux/tcp.h, which grows at its end.
# tcpi_retransmits, probes, backoff, options; snd_mss; unacked; last_data_recv, last_ack_recv (milliseconds); rtt (us).
_INFO = struct.Struct("=2x4B10xI4xI24xII8xI")
# tcpi_total_retrans; data_segs_out; dsack_dups. A kernel that is older tells less of them.
_PACKETS = struct.Struct("=100xI52xI56xI")
_TIMESTAMPS = 1  # TCPI_OPT_TIMESTAMPS
_IPV4, _IPV6, _TCP, _STAMPS = 20, 40, 20, 12  # bytes of headers


@dataclass(frozen=True)
class TcpInfo:
    """A connection at this moment."""

    retries: int
    """How often what was sent first has been sent again, or the other side's window been asked for, in vain."""
    unanswered: int
    """The packets that are sent and not acknowledged."""
    idle: float
    """Seconds since anything came, be it an acknowledgement."""
    resent: int = 0
    """How often in a row what was sent first has been sent again without an answer."""
    backoff: int = 0
    """How often the pause before the next try has doubled."""
    largest: int = 0
    """Bytes of data in the largest packet that is sent, without headers."""
    round_trip: float = 0.0
    """Seconds, smoothed."""
    has_timestamps: bool = False

    @classmethod
    def of(cls, connection: socket.socket) -> TcpInfo:
        """Ask the kernel; raises OSError when the connection is closed."""
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        retransmits, probes, backoff, options, mss, unacked, last_data, last_ack, round_trip = _INFO.unpack(data)
        return cls(
            retransmits + probes,
            unacked,
            min(last_data, last_ack) / 1000,
            retransmits,
            backoff,
            mss,
            round_trip / 1e6,
            bool(options & _TIMESTAMPS),
        )

    def is_dead(self, timeout: float) -> bool:
        """Whether what is sent has been unanswered for so many seconds.

        A host that is alive answers even when its process does not read. Before anything is sent nothing has to come,
        apart from answers to keepalives.
        """
        return self.retries > 0 and self.idle >= timeout

    def headers(self, family: int) -> int:
        """Return the bytes of headers in each packet of data of a connection of this address family."""
        ip = _IPV6 if family == socket.AF_INET6 else _IPV4
        return ip + _TCP + (_STAMPS if self.has_timestamps else 0)


@dataclass(frozen=True)
class SentPackets:
    """The packets of data that have been sent on a connection since it was made."""

    sent: int
    """All, those that were sent again among them. 0: the kernel does not say (before Linux 4.6)."""
    lost: int
    """The packets that had to be sent again."""

    @classmethod
    def of(cls, connection: socket.socket) -> SentPackets:
        """Ask the kernel; raises OSError when the connection is closed."""
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _PACKETS.size)
        retransmitted, sent, came_twice = _PACKETS.unpack(data.ljust(_PACKETS.size, b"\0"))
        return cls(sent, max(0, retransmitted - came_twice))

    @property
    def loss(self) -> float:
        """The share of packets that were lost."""
        return self.lost / self.sent if self.sent else 0.0
