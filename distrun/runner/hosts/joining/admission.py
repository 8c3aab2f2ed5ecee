"""Admission: callers that know the key and introduce themselves as hosts may come in, all others are turned away."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from distrun import __version__
from distrun.host.connections.listener import Listener
from distrun.runner.hosts.joining.messages import Member, MessageKind, encode

_LAST_WORDS_TIMEOUT = 2.0  # seconds in which a host takes its last message


class Admission:
    """The sockets that listen for hosts. For one thread, but for `describe_refused`."""

    def __init__(self, listeners: Sequence[socket.socket], secret: bytes, say: Callable[[str], None]) -> None:
        """Args: sockets that listen, which `close` closes; what the hosts know each other by; what tells the user."""
        self._listener = Listener(listeners, secret, is_encrypted=True)
        self._say = say
        self._has_told = False

    def fileno(self) -> int:
        """Return a descriptor that is readable when `next` has something to do."""
        return self._listener.fileno()

    def next(self) -> tuple[socket.socket, Member] | None:
        """Return the next host that has called, and its connection; None = there is none now. Never waits.

        Raises:
            BootstrapError: this process has no file descriptors left.
        """
        while (client := self._listener.receive(0.0)) is not None:
            connection, introduction = client
            try:
                return connection, Member.from_json(introduction)
            except (KeyError, TypeError, ValueError):
                self._turn_away(connection, introduction)
        if self._listener.refused and not self._has_told:  # once is enough
            self._has_told = True
            self._say(f"{self.describe_refused()}, and cannot join")
        return None

    def describe_refused(self) -> str:
        """Return who did not know the key, as the beginning of a sentence; empty = nobody."""
        return self._listener.describe_refused().replace("the job key", "DISTRUN_KEY")

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    def _turn_away(self, connection: socket.socket, introduction: dict[str, Any]) -> None:
        """Refuse a host whose introduction is none of this version's."""
        index, version = (str(introduction.get(name))[:20] for name in ("index", "distrun"))
        reason = f"host {index} introduces itself as distrun {version}, and here is {__version__}: give all the same"
        self._say(reason)
        say_last(connection, MessageKind.REFUSED, reason.encode())


def say_last(connection: socket.socket, kind: MessageKind, payload: bytes) -> None:
    """Send a last message, which a connection that does not take it in time is spared, and close the connection."""
    with suppress(OSError):
        connection.settimeout(_LAST_WORDS_TIMEOUT)
        connection.sendall(encode(kind, payload))
    connection.close()
