"""One address to connect with: attempts one after the other, none of which blocks, and when the next is due."""

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

# Seconds before the next attempt: after the first, at most, and at most after a failed authentication. (Who answers may
# be a rank 0 that has been left behind and is about to go.)
SHORTEST_PAUSE, _LONGEST_PAUSE, REFUSED_PAUSE = 0.01, 0.25, 0.5


@dataclass(frozen=True)
class PeerConnection:
    """A connection with another process, after the handshake. It blocks, has no timeout and has our TCP options."""

    socket: socket.socket
    endpoint: tuple[str, int]
    """The other side's address, in digits, and port."""
    key: bytes
    """The key that both have proved to know."""


@dataclass(eq=False)
class Target:
    """One address of an endpoint, and the state of the attempts to connect with it."""

    endpoint: tuple[str, int]
    """The endpoint for people, which may have a name instead of the address."""
    family: socket.AddressFamily
    address: tuple[Any, ...]
    selector: selectors.BaseSelector
    """Tells when `advance` is to be called; its data is this object."""
    due: float
    """The time of the next attempt."""
    pause: float = SHORTEST_PAUSE
    reason: str = ""
    """Why the last attempt failed. That of a failed authentication is kept, as it tells more than any other."""
    is_refused: bool = False
    """Whether an authentication has failed."""
    tries: int = 0
    connection: socket.socket | None = None
    handshake: NonblockingHandshake[tuple[bytes, Session | None]] | None = None
    until: float = 0.0
    """The time at which the attempt under way is given up."""

    @property
    def next_time(self) -> float:
        """The time at which something is to be done though nothing has come."""
        return self.due if self.connection is None else self.until

    @property
    def words(self) -> str:
        """The outcome so far, for people, as in `connection refused`; empty if nothing has failed."""
        is_waiting = self.connection is not None and not self.is_refused
        return self._timeout_reason() if is_waiting else self.reason

    def attempt(self, source: str | None, now: float) -> bool:
        """Begin to connect; return False if the attempt has failed at once.

        Args:
            source: the address of our own to connect from, if it is of the same family.
            now: the time.
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
        """Go on with an attempt.

        Args:
            key: the key, or what finds it.
            is_encrypted: whether the connection is to be encrypted.

        Returns:
            The connection when the other side has proved to know the key. None: the attempt goes on, or it has failed;
            then `connection` is None as well.
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
        """Give up the attempt under way."""
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
        """Begin the handshake when the connection is made; raises `OSError` when it cannot be made."""
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        address = connection.getpeername()
        if address == connection.getsockname():
            # Where no process listens, TCP may connect a socket with itself.
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self.handshake = NonblockingHandshake(connection, client_handshake(key, context(address), is_encrypted))

    def _fail(self, reason: str, is_refused: bool = False) -> None:
        """End an attempt that came to nothing, and pause before the next."""
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
