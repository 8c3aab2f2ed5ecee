"""Admission: the listening sockets of a launcher. Callers that know the key may introduce themselves as hosts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

from distrun import __version__
from distrun.host.connections.listener import Listener
from distrun.runner.hosts.joining.connection import Connection
from distrun.runner.hosts.joining.endpoint import JoinEndpoint
from distrun.runner.hosts.joining.messages import Member, MessageKind

_LAST_MESSAGE_TIMEOUT = 2.0  # seconds for a host to take its last message


class Admission:
    """Sockets that listen for hosts. For one thread, but for `describe_refused`."""

    def __init__(
        self, listeners: Sequence[socket.socket], endpoint: JoinEndpoint, notify_user: Callable[[str], None]
    ) -> None:
        """`close` closes the `listeners`, which listen already. `notify_user` shows a sentence to the user."""
        self._endpoint = endpoint
        self._listener = Listener(listeners, endpoint.secret, is_encrypted=endpoint.is_encrypted)
        self._notify_user = notify_user
        self._has_notified = False

    def fileno(self) -> int:
        """Return a descriptor that is readable when `next` has something to do."""
        return self._listener.fileno()

    def next(self) -> tuple[Connection, Member] | None:
        """Return the next host that has called, with its connection. None = there is none now. Never waits.

        Raises:
            BootstrapError: this process has no file descriptors left.
        """
        while (client := self._listener.receive(0.0)) is not None:
            connection, introduction = Connection(client[0]), client[1]
            try:
                return connection, Member.from_json(introduction)
            except (KeyError, TypeError, ValueError):
                self._refuse(connection, introduction)
        if self._listener.refused and not self._has_notified:  # once is enough
            self._has_notified = True
            self._notify_user(f"{self.describe_refused()}, and cannot join")
        return None

    def describe_refused(self) -> str:
        """Return which clients did not know the key, as the start of a sentence. Empty = none."""
        return self._listener.describe_refused().replace("the job key", self._endpoint.key_name)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _refuse(self, connection: Connection, introduction: dict[str, Any]) -> None:
        """Refuse a host whose introduction this version does not understand."""
        index, version = (str(introduction.get(name))[:20] for name in ("index", "distrun"))
        reason = f"host {index} introduces itself as distrun {version}, and here is {__version__}: give all the same"
        self._notify_user(reason)
        send_last(connection, MessageKind.REFUSED, reason.encode())


def send_last(connection: Connection, kind: MessageKind, payload: bytes) -> None:
    """Send a last message, if the connection takes it in time, and close the connection."""
    connection.put(kind, payload)
    connection.close(_LAST_MESSAGE_TIMEOUT)
