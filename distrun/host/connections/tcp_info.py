"""TCP_INFO: the kernel's information about acknowledgements and losses on a TCP connection."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

# struct tcp_info of linux/tcp.h, which grows at its end. QEMU, emulating a processor, returns the first 4 bytes.
# tcpi_retransmits, probes, backoff, options; snd_mss; unacked; last_data_recv, last_ack_recv (milliseconds); rtt (us).
_INFO = struct.Struct("=2x4B10xI4xI24xII8xI")
# tcpi_total_retrans; data_segs_out; dsack_dups. Older kernels return fewer of these.
_PACKETS = struct.Struct("=100xI52xI56xI")
_TIMESTAMPS = 1  # TCPI_OPT_TIMESTAMPS
_IPV4, _IPV6, _TCP, _STAMPS = 20, 40, 20, 12  # bytes of headers


@dataclass(frozen=True)
class TcpInfo:
    """The state of a connection at one moment."""

    retries: int
    """How often the first unacknowledged packet was sent again, or a window probe was sent, without an answer."""
    unanswered: int
    """The number of packets that were sent and are not acknowledged."""
    idle: float
    """Seconds since any packet arrived, including an acknowledgement."""
    resent: int = 0
    """How often in a row the first unacknowledged packet was sent again without an answer."""
    backoff: int = 0
    """How often the pause before the next retransmission or probe has doubled."""
    largest: int = 0
    """Bytes of data in the largest packet that may be sent (the MSS), without headers."""
    round_trip: float = 0.0
    """The smoothed round-trip time in seconds."""
    has_timestamps: bool = False

    @classmethod
    def of(cls, connection: socket.socket) -> TcpInfo:
        """Return the state of `connection`, from the kernel. Raises OSError if it is closed."""
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        retransmits, probes, backoff, options, mss, unacked, last_data, last_ack, round_trip = _unpack(_INFO, data)
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
        """Return whether sent data has been unanswered for `timeout` seconds.

        A host that is alive answers even if its process does not read. On a connection without sent data, nothing needs
        to arrive except answers to keepalives.
        """
        return self.retries > 0 and self.idle >= timeout

    def headers(self, family: int) -> int:
        """Return the bytes of headers in each data packet of a connection of the address family `family`."""
        ip = _IPV6 if family == socket.AF_INET6 else _IPV4
        return ip + _TCP + (_STAMPS if self.has_timestamps else 0)


@dataclass(frozen=True)
class SentPackets:
    """The data packets that were sent on a connection since it was made."""

    sent: int
    """The number of packets, including retransmissions. 0 if the kernel does not report it (before Linux 4.6)."""
    lost: int
    """The number of packets that had to be sent again."""

    @classmethod
    def of(cls, connection: socket.socket) -> SentPackets:
        """Return the packets of `connection`, from the kernel. Raises OSError if it is closed."""
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _PACKETS.size)
        retransmitted, sent, came_twice = _unpack(_PACKETS, data)
        return cls(sent, max(0, retransmitted - came_twice))

    @property
    def loss(self) -> float:
        """The share of packets that were lost."""
        return self.lost / self.sent if self.sent else 0.0


def _unpack(form: struct.Struct, data: bytes) -> tuple[int, ...]:
    """Return the numbers, with 0 for those that the kernel has not returned."""
    return form.unpack(data.ljust(form.size, b"\0"))
