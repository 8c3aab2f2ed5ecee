"""A peer: what a rank knows of another one that it exchanges messages with."""

from __future__ import annotations

from collections import deque

from distrun.runtime.collectives.point_to_point.connection import Connection
from distrun.runtime.collectives.point_to_point.transfer import Send

SMALL = 1 << 16
"""Bytes of a message up to which it is sent at once, though the receiver may not have asked for it."""
CREDIT = 1 << 22
"""Bytes of such messages that may be under way to a rank, or wait there; more of them are offered first."""


class Peer:
    """Another rank of the world, as one rank sees it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.connections: list[Connection] = []
        """The connections that are open. All that is sent begins its way on the first, so that it arrives in order."""
        self.waiting: deque[bytes] = deque()
        """Frames that wait for a connection."""
        self.offers: dict[int, Send] = {}
        """The messages to it that are offered, or whose bytes are leaving, by number."""
        self.credit = CREDIT
        """Bytes of small messages that may be sent without being asked for."""
        self.is_dialed = False
        """Whether a connection with it is being made."""
        self.dial_problem = ""
        """Why there is none yet, as far as that is known."""
        self.is_told = False
        """Whether it knows that this rank leaves."""
        self.has_said_farewell = False
        self.ended: tuple[float, str] | None = None
        """When a connection with it ended, and how: soon it will be known why."""
        self.lost: str | None = None
        """Why no message can come from it or go to it any more."""

    def put(self, frame: bytes) -> None:
        """Send a frame, once there is a connection."""
        if self.connections:
            self.connections[0].put(frame)
        else:
            self.waiting.append(frame)

    def attach(self, connection: Connection) -> None:
        """Use a connection, and send what has waited for one."""
        self.connections.append(connection)
        while self.waiting:
            self.connections[0].put(self.waiting.popleft())

    @property
    def is_sending(self) -> bool:
        """Whether anything for it has not left this process."""
        return bool(self.waiting) or any(connection.is_sending for connection in self.connections)

    @property
    def is_under_way(self) -> bool:
        """Whether anything for it has not come to its host."""
        return bool(self.waiting) or any(connection.is_under_way for connection in self.connections)

    @property
    def is_watched(self) -> bool:
        """Whether something waits for it to be there, beside what is offered to it or asked of it."""
        return self.is_sending or self.ended is not None


class Peers(dict[int, Peer]):
    """The ranks that this one has to do with, made when they are first asked for: a job may have thousands."""

    def __init__(self, own: int, size: int) -> None:
        super().__init__()
        self._own = own
        self._size = size

    def has(self, rank: int) -> bool:
        """Whether there is such a rank."""
        return rank != self._own and 0 <= rank < self._size

    def __missing__(self, rank: int) -> Peer:
        if not self.has(rank):
            raise KeyError(rank)
        self[rank] = Peer(rank)
        return self[rank]
