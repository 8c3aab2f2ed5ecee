"""The condition of a TCP connection that has been waited for too long, in words for users."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from dataclasses import dataclass
from enum import Enum

from distrun.host.connections.tcp_info import SentPackets, TcpInfo

_SIOCOUTQNSD = 0x894B  # linux/sockios.h: the bytes that have not been sent even once
_INT = struct.Struct("i")
_SUSPICIOUS_RETRIES = 3  # in a row, each after twice the time of the previous one: at least 1.4 s
_LOSS, _MANY = 0.01, 10  # the least share and number of lost packets that count as a fault of the network
RECENT = 3.0
"""Packets that arrived in the last so many seconds count as recent."""
_SMALL = 500  # bytes: a packet with at most this much data passes any path MTU


class Finding(Enum):
    """The faults of a connection, the worst first."""

    UNANSWERED = "what was sent is not acknowledged"
    LOSSY = "packets are lost"
    NOT_READ = "the process at the other end does not read"
    SOUND = "nothing"


@dataclass(frozen=True)
class TcpCondition:
    """The state of a connection at one moment."""

    info: TcpInfo
    packets: SentPackets
    unacknowledged: int
    """Bytes that were sent and are not acknowledged."""
    unsent: int
    """Bytes in the kernel's buffer that have not been sent even once."""

    @classmethod
    def of(cls, connection: socket.socket) -> TcpCondition:
        """Return the state of `connection`, from the kernel. Raises OSError if it is closed."""
        waiting, unsent = (_bytes(connection, request) for request in (termios.TIOCOUTQ, _SIOCOUTQNSD))
        return cls(TcpInfo.of(connection), SentPackets.of(connection), max(0, waiting - unsent), unsent)

    @property
    def finding(self) -> Finding:
        """The worst fault."""
        info, packets = self.info, self.packets
        if info.resent >= _SUSPICIOUS_RETRIES and self.unacknowledged:
            return Finding.UNANSWERED
        if packets.lost >= _MANY and packets.loss >= _LOSS:
            return Finding.LOSSY
        if self.unsent and not info.unanswered and (info.backoff or info.retries):
            return Finding.NOT_READ
        return Finding.SOUND

    def is_answered(self, within: float = RECENT) -> bool:
        """Return whether all sent data is acknowledged, and something arrived in the last `within` seconds."""
        return not self.info.unanswered and not self.info.retries and self.info.idle <= within

    def describe(self, small_pass: bool = False) -> str:
        """Return a clause about the connection, to follow its name, or "" if it is sound.

        Args:
            small_pass: whether another connection shows that small packets are answered.
        """
        match self.finding:
            case Finding.UNANSWERED:
                return self._describe_unanswered(small_pass)
            case Finding.LOSSY:
                lost, sent = self.packets.lost, self.packets.sent
                return (
                    f"has sent {self.packets.loss * 100:.2g} % of its packets again ({lost} of {sent}): packets are "
                    "lost on the way"
                )
            case Finding.NOT_READ:
                return (
                    f"holds {kilobytes(self.unsent)} that the process there does not read: it is stopped or busy, and "
                    "the network is not the cause"
                )
            case Finding.SOUND:
                return ""

    def _describe_unanswered(self, small_pass: bool) -> str:
        info = self.info
        sent = f"has {kilobytes(self.unacknowledged)} unacknowledged, sent again {info.resent} times"
        if small_pass and self.unacknowledged > _SMALL:
            return f"{sent}, while small packets are answered: large packets are lost on the way (an MTU black hole)"
        if small_pass or info.idle <= RECENT:
            return f"{sent}, while packets come from there: packets are lost on the way there, large ones perhaps"
        return f"{sent}, and nothing has come from there for {info.idle:.0f} s: packets are lost on the way"


def kilobytes(count: int) -> str:
    """Return a number of bytes as text: 512 bytes, 48 kB, 3.1 MB."""
    if count < 1000:
        return f"{count} byte{'s' * (count != 1)}"
    value, unit = (count / 1e6, "MB") if count >= 1e6 else (count / 1e3, "kB")
    return f"{value:.2g} {unit}" if value < 10 else f"{value:.0f} {unit}"


def _bytes(connection: socket.socket, request: int) -> int:
    (count,) = _INT.unpack(fcntl.ioctl(connection.fileno(), request, bytes(_INT.size)))
    return int(count)
