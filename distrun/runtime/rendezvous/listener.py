"""The reception: takes calls over TCP and lets in only those who know the job key."""

from __future__ import annotations

import errno
import resource
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distrun.errors import BootstrapError
from distrun.runtime.rendezvous.authentication import Conversation, StrangerError
from distrun.runtime.rendezvous.handshake import (
    HANDSHAKE_TIMEOUT,
    LENGTH,
    LONGEST_GREETING,
    MAGIC,
    context,
    server_handshake,
    tune,
)

UNFINISHED = 1024
"""Callers that may be under way at once, or a quarter of the files this process may open, if that is less; the oldest makes
room for the next."""
_BACKLOG = 4096
_BURST = 64  # callers accepted before those who wait get a turn
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def listen(address: str, port: int = 0, shared: bool = False) -> socket.socket:
    """A socket that listens on a numeric address.

    Args:
        shared: the port may be bound by other processes of this user too (SO_REUSEPORT), such as one that keeps it free
            for us; calls come to those who listen.

    Raises:
        OSError: the address is not one of this machine, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


@dataclass
class _Caller:
    """Somebody whose introduction is not complete."""

    connection: socket.socket
    conversation: Conversation[dict[str, Any]]
    address: str
    until: float
    events: int = select.EPOLLOUT
    """What we wait for: first of all we say something."""


class Listener:
    """Takes calls on listening sockets; authenticates many callers at once and hands over those who know the key.

    No stranger delays anybody: callers that say nothing, nonsense, or the right thing too slowly are dropped after
    `PATIENCE`, or sooner when there are more than `UNFINISHED`. The listeners belong to the reception, which closes them.
    One thread at a time may use it.
    """

    def __init__(self, listeners: Sequence[socket.socket], key: bytes, greeting: bytes = b"") -> None:
        """
        Args:
            listeners: sockets that listen.
            key: the job key.
            greeting: what every caller is sent first, strangers included; at most 16 KiB.
        """
        if len(greeting) > LONGEST_GREETING:
            raise ValueError(f"a greeting of {len(greeting)} bytes is longer than {LONGEST_GREETING}")
        self._key = key
        self._greeting = MAGIC + LENGTH.pack(len(greeting)) + greeting
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._callers: dict[int, _Caller] = {}  # the oldest first
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = UNFINISHED if limit == resource.RLIM_INFINITY else max(1, min(UNFINISHED, limit // 4))
        self._epoll = select.epoll()
        for listener in listeners:
            listener.setblocking(False)
            self._epoll.register(listener, select.EPOLLIN)
        self.refused = 0
        """Calls that gave a wrong proof."""
        self.refused_address = ""
        """Where the last of them came from."""

    def fileno(self) -> int:
        """A descriptor that is readable when `receive` has something to do. (Callers whose time is over do not make it
        readable; the next `receive` drops them.)"""
        return self._epoll.fileno()

    @property
    def places(self) -> list[tuple[str, int]]:
        """The addresses and ports at which calls are taken."""
        return [listener.getsockname()[:2] for listener in self._listeners.values()]

    def strangers(self) -> str:
        """`2 calls did not know the job key, the last from 10.0.0.9`; empty when there were none."""
        if not self.refused:
            return ""
        if self.refused == 1:
            return f"1 call, from {self.refused_address}, did not know the job key"
        return f"{self.refused} calls did not know the job key, the last from {self.refused_address}"

    def receive(self, timeout: float | None) -> tuple[socket.socket, dict[str, Any]] | None:
        """The next caller that proved the key, with its introduction; None when none came.

        The connection blocks, has no timeout and is tuned; nothing has been read from it beyond the introduction.

        Args:
            timeout: seconds to wait; 0: only what can be done at once; None: for ever.

        Raises:
            BootstrapError: this process has no file descriptors left.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            now = time.monotonic()
            self._drop_late_callers(now)
            for fd, _ in self._epoll.poll(self._pause(now, deadline)):
                if fd in self._listeners:
                    self._accept(self._listeners[fd])
                elif fd in self._callers:
                    introduction = self._hear(fd)
                    if introduction is not None:  # the other events are still there when we are asked again
                        return self._hand_over(fd), introduction
            if deadline is not None and time.monotonic() >= deadline:
                return None

    def close(self) -> None:
        """Stop listening and hang up on unfinished callers. May be called twice."""
        for fd in list(self._callers):
            self._drop(fd)
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        self._epoll.close()

    def _pause(self, now: float, deadline: float | None) -> float | None:
        """How long to wait for events: until the oldest caller's time is over at most."""
        ends = [caller.until for caller in self._callers.values()][:1]
        if deadline is not None:
            ends.append(deadline)
        return max(0.0, min(ends) - now) if ends else None

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_BURST):
            try:
                connection, address = listener.accept()
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    return  # nobody is waiting any more, or the caller has hung up already
                if not self._callers:
                    raise BootstrapError(
                        f"no call can be taken: {error.strerror}; raise the limit of open files (ulimit -n)"
                    ) from None
                self._drop(next(iter(self._callers)))
                continue
            if len(self._callers) >= self._most:
                self._drop(next(iter(self._callers)))
            self._begin(connection, address[0])

    def _begin(self, connection: socket.socket, address: str) -> None:
        try:
            connection.setblocking(False)
            tune(connection)
            script = server_handshake(self._greeting, self._key, context(connection.getsockname()))
        except OSError:
            connection.close()  # it has gone already
            return
        fd = connection.fileno()
        self._callers[fd] = _Caller(
            connection, Conversation(connection, script), address, time.monotonic() + HANDSHAKE_TIMEOUT
        )
        self._epoll.register(fd, select.EPOLLOUT)

    def _hear(self, fd: int) -> dict[str, Any] | None:
        """Go on with a caller; its introduction when that is complete."""
        caller = self._callers[fd]
        try:
            if caller.conversation.advance():
                return caller.conversation.result
        except StrangerError:
            self.refused += 1
            self.refused_address = caller.address
            self._drop(fd)
        except (OSError, BootstrapError):
            self._drop(fd)
        else:
            events = select.EPOLLOUT if caller.conversation.wants_to_send else select.EPOLLIN
            if events != caller.events:
                caller.events = events
                self._epoll.modify(fd, events)
        return None

    def _hand_over(self, fd: int) -> socket.socket:
        caller = self._callers.pop(fd)
        self._epoll.unregister(fd)
        caller.connection.setblocking(True)
        return caller.connection

    def _drop(self, fd: int) -> None:
        caller = self._callers.pop(fd)
        caller.conversation.close()
        caller.connection.close()  # epoll forgets it by itself

    def _drop_late_callers(self, now: float) -> None:
        while self._callers:
            fd, caller = next(iter(self._callers.items()))
            if caller.until > now:
                return
            self._drop(fd)
