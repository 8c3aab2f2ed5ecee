"""One address to connect with: non-blocking attempts, one after the other, and the time of the next."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distrun.errors import DistrunError
from distrun.host.connections.authentication import NonblockingHandshake
from distrun.host.connections.handshake import HANDSHAKE_TIMEOUT, KeySource, client_handshake, context, encrypted
from distrun.host.connections.tcp_options import set_tcp_options

if TYPE_CHECKING:
    from distrun.host.connections.tls import Session

# Seconds before the next attempt: after the first one, at most, and at most after a failed authentication. (The process
# that answers may be rank 0 of an earlier run that is about to end.)
SHORTEST_PAUSE, _LONGEST_PAUSE, REFUSED_PAUSE = 0.01, 0.25, 0.5


@dataclass(frozen=True)
class PeerConnection:
    """A connection with another process after the handshake: blocking, without a timeout, with TCP options set."""

    socket: socket.socket
    endpoint: tuple[str, int]
    """The other side's numeric address and port."""
    key: bytes
    """The key that both sides have proved to know."""


@dataclass(eq=False)
class Target:
    """One address of an endpoint, and the state of the attempts to connect with it."""

    endpoint: tuple[str, int]
    """The endpoint in messages to users, which may have a name instead of the address."""
    family: socket.AddressFamily
    address: tuple[Any, ...]
    selector: selectors.BaseSelector
    """Selects the events for `advance`. Their data is this object."""
    due: float
    """The time of the next attempt."""
    pause: float = SHORTEST_PAUSE
    reason: str = ""
    """Why the last attempt failed. The reason of a failed authentication is kept, since it is the most useful one."""
    is_refused: bool = False
    """Whether an authentication has failed."""
    tries: int = 0
    connection: socket.socket | None = None
    handshake: NonblockingHandshake[tuple[bytes, Session | None]] | None = None
    until: float = 0.0
    """The time when the attempt under way times out."""

    @property
    def next_time(self) -> float:
        """The time of the next action that needs no event."""
        return self.due if self.connection is None else self.until

    @property
    def words(self) -> str:
        """The outcome so far, in words such as `connection refused`. Empty if nothing has failed."""
        is_waiting = self.connection is not None and not self.is_refused
        return self._timeout_reason() if is_waiting else self.reason

    def attempt(self, source: str | None, now: float) -> bool:
        """Begin to connect. Return False if the attempt has failed at once.

        Args:
            source: the local address to connect from, used if it is of the same family.
            now: the current time.
        """
        self.tries += 1
        self.until = now + HANDSHAKE_TIMEOUT
        try:
            connection = self.connection = socket.socket(self.family, socket.SOCK_STREAM)
            connection.setblocking(False)
            set_tcp_options(connection)
            if source is not None and (":" in source) == (self.family == socket.AF_INET6):
                connection.bind((source, 0))
            code = connection.connect_ex(self.address)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
            self.selector.register(connection, selectors.EVENT_WRITE, self)
        except OSError as error:
            self._fail(in_words(error))
            return False
        return True

    def advance(self, key: KeySource, is_encrypted: bool) -> PeerConnection | None:
        """Continue an attempt.

        Args:
            key: the key, or a function that finds it.
            is_encrypted: whether to encrypt the connection.

        Returns:
            The connection when the other side has proved that it knows the key. None if the attempt continues, or if it
            has failed, in which case `connection` is None as well.
        """
        connection = self.connection
        assert connection is not None  # only attempts under way have events
        try:
            if self.handshake is None:
                self._begin_handshake(connection, key, is_encrypted)
            handshake = self.handshake
            assert handshake is not None
            if not handshake.advance():
                event = selectors.EVENT_WRITE if handshake.wants_to_send else selectors.EVENT_READ
                self.selector.modify(connection, event, self)
                return None
            address = connection.getpeername()
        except OSError as error:
            self._fail(in_words(error))
            return None
        except DistrunError as error:
            self._fail(str(error), is_refused=True)
            return None
        self.selector.unregister(connection)
        self.connection = self.handshake = None
        self.due = float("inf")
        connection.setblocking(True)
        found, session = handshake.result
        return PeerConnection(encrypted(connection, session), address[:2], found)

    def time_out(self) -> None:
        """End the attempt under way because it has timed out."""
        self._fail(self._timeout_reason())

    def end(self) -> None:
        """End the attempt under way, if there is one."""
        if self.handshake is not None:
            self.handshake.close()
        if self.connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(self.connection)
            self.connection.close()
        self.connection = self.handshake = None

    def _begin_handshake(self, connection: socket.socket, key: KeySource, is_encrypted: bool) -> None:
        """Begin the handshake when the connection is established. Raises `OSError` if it cannot be."""
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        address = connection.getpeername()
        if address == connection.getsockname():
            # If no process listens, TCP may connect a socket with itself (a simultaneous open).
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self.handshake = NonblockingHandshake(connection, client_handshake(key, context(address), is_encrypted))

    def _fail(self, reason: str, is_refused: bool = False) -> None:
        """End an attempt that has failed, and schedule the next."""
        self.end()
        if is_refused or not self.is_refused:
            self.reason = reason
        self.is_refused |= is_refused
        pause = min(REFUSED_PAUSE, 5 * self.pause) if is_refused else self.pause
        self.due = time.monotonic() + pause
        self.pause = min(_LONGEST_PAUSE, self.pause * 1.5)

    def _timeout_reason(self) -> str:
        return "no answer" if self.handshake is None else "it accepts connections and says nothing"


def in_words(error: OSError) -> str:
    """Return why a connection failed, as in `connection refused`."""
    text = error.strerror or str(error) or type(error).__name__
    return text[0].lower() + text[1:]
