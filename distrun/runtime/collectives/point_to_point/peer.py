"""A peer: the state that a rank keeps of another rank that it exchanges messages with."""

from __future__ import annotations

from collections import deque

from distrun.runtime.collectives.point_to_point.connection import Connection
from distrun.runtime.collectives.point_to_point.transfer import Send

SMALL = 1 << 16
"""The largest message, in bytes, that is sent at once, before the receiver has asked for it."""
CREDIT = 1 << 22
"""The bytes of such messages that may be on their way to a rank or wait there. Beyond that, messages are offered first,
which bounds the receiver's memory."""


class Peer:
    """Another rank of the world, as one rank sees it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.connections: list[Connection] = []
        """The open connections: two if both sides dialed at once. Messages and offers are sent on the first only, to
        arrive in order."""
        self.waiting: deque[bytes] = deque()
        """Frames to send on the first connection."""
        self.offers: dict[int, Send] = {}
        """The large messages to it that are offered or being sent, by number."""
        self.credit = CREDIT
        """Bytes of small messages that may be sent to it without an offer."""
        self.is_dialed = False
        """Whether this rank has begun to dial it."""
        self.dial_problem = ""
        """Why dialing has failed so far, or empty if that is not known."""
        self.is_told = False
        """Whether it has been sent this rank's FAREWELL."""
        self.has_said_farewell = False
        self.ended: tuple[float, str] | None = None
        """When and how a connection with it ended, while the reason is not known."""
        self.lost: str | None = None
        """Why no message can come from it or go to it. None while it is there."""

    def put(self, frame: bytes) -> None:
        """Send a frame, now or when there is a connection."""
        if self.connections:
            self.connections[0].put(frame)
        else:
            self.waiting.append(frame)

    def attach(self, connection: Connection) -> None:
        """Add a connection, and send the frames that waited for one."""
        self.connections.append(connection)
        while self.waiting:
            self.connections[0].put(self.waiting.popleft())

    @property
    def is_under_way(self) -> bool:
        """Whether any frame for it has not arrived at its host."""
        return bool(self.waiting) or any(connection.is_under_way for connection in self.connections)

    @property
    def is_watched(self) -> bool:
        """Whether its departure must be noticed even if no transfer is pending."""
        is_sending = bool(self.waiting) or any(connection.is_sending for connection in self.connections)
        return is_sending or self.ended is not None


class Peers(dict[int, Peer]):
    """The ranks that this one exchanges messages with, each made on first access: a job may have thousands."""

    def __init__(self, own: int, size: int) -> None:
        super().__init__()
        self._own = own
        self._size = size

    def has(self, rank: int) -> bool:
        """Whether `rank` is another rank of the world."""
        return rank != self._own and 0 <= rank < self._size

    def __missing__(self, rank: int) -> Peer:
        if not self.has(rank):
            raise KeyError(rank)
        self[rank] = Peer(rank)
        return self[rank]
