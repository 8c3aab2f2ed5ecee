"""A simulated rendezvous: rank 0's listener and both sides of the handshakes, the real code, on simulated sockets.

Rank 0 is one thread, whose clock goes on when it accepts a connection and when it answers. What is sent comes after the
latency of the way. Clients that rank 0 has dropped, or whose connection found the queue of those to be accepted full,
try again as they do on a network.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.scale.machine import Machine
from distrun.errors import BootstrapError
from distrun.host.connections import listener as listening, target
from distrun.host.connections.authentication import NonblockingHandshake
from distrun.host.connections.handshake import ACKNOWLEDGEMENT, LENGTH, client_handshake, context
from distrun.runtime.transport.rendezvous.protocol import ALARM, CONTROL, Member

PAUSE = target._LONGEST_PAUSE
"""Seconds between two attempts of a client to which nobody answers."""
_KEY = bytes(32)
_AT = ("10.0.0.1", 40000)
_QUEUE = 4096  # connections that wait to be accepted: Linux's limit, and what the listener asks for
_RETRIES = (1.0, 2.0, 4.0)  # seconds after which TCP asks again for a connection that found the queue full
_SPREAD = 0.618034  # multiples of it, modulo 1, are spread evenly
_IN, _OUT = 1, 4
_MOST_EVENTS = 1023  # that a poll tells of


class Rendezvous:
    """Rank 0's real listener, and its clients."""

    def __init__(self, machine: Machine, step: float) -> None:
        self.machine, self.step, self.now = machine, step, 0.0
        self.made = self.dropped = 0
        """The connections that were made, and those that rank 0 has given up before."""
        self.then = 0.0
        """The time of what clients do."""
        self.queue: deque[_Socket] = deque()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.numbers = itertools.count(1)
        self.ready: dict[int, Callable[[int], bool]] = {}

    def at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), do))

    def pass_time(self, until: float) -> None:
        """Have everything happen until a time."""
        while self._events and self._events[0][0] <= until:
            when, _, do = heapq.heappop(self._events)
            self.then = when
            do()

    def enqueue(self, connection: _Socket) -> None:
        self.queue.append(connection)
        self.ready[0] = lambda mask: bool(self.queue)

    def run(self, clients: Sequence[Member], limit: float, most: int) -> None:
        """Have clients make both connections, within so many seconds; rank 0 keeps `most` handshakes under way."""
        for number, member in enumerate(clients):
            _Client(self, member, len(clients) + 1, PAUSE * (number * _SPREAD % 1))
        fakes: dict[str, Any] = {
            "select": SimpleNamespace(epoll=lambda: _Epoll(self), EPOLLIN=_IN, EPOLLOUT=_OUT),
            "time": SimpleNamespace(monotonic=lambda: self.now),
            "resource": SimpleNamespace(getrlimit=lambda _: (-1, -1), RLIMIT_NOFILE=0, RLIM_INFINITY=-1),
            "MAX_HANDSHAKES": most,
        }
        with mock.patch.multiple(listening, **fakes):
            listener = listening.Listener([_Queue(self)], _KEY)  # type: ignore[list-item]
            while self.made < 2 * len(clients) and self.now < limit:
                if listener.receive(0) is not None:
                    self.made += 1
                elif not self.ready:
                    self.now = max(self.now, self._events[0][0])


class _Epoll:
    """Tells which sockets of rank 0 are ready, those that were told of last at the end, as Linux does."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._masks: dict[int, int] = {}

    def register(self, fd: Any, mask: int) -> None:
        self._masks[fd if isinstance(fd, int) else fd.fileno()] = mask

    modify = register

    def unregister(self, fd: int) -> None:
        del self._masks[fd]

    def poll(self, timeout: float | None) -> Iterator[tuple[int, int]]:
        rendezvous = self._rendezvous
        rendezvous.pass_time(rendezvous.now)
        ready = rendezvous.ready
        told = list(itertools.islice(ready.items(), _MOST_EVENTS))
        if len(ready) > _MOST_EVENTS:
            for fd, is_ready in told:
                del ready[fd]
                ready[fd] = is_ready
        for fd, is_ready in told:  # only those that are asked for are looked at
            mask = self._masks.get(fd)
            if mask is not None and is_ready(mask):
                yield fd, mask
            else:
                ready.pop(fd, None)


class _Queue:
    """The socket at which rank 0 listens."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous

    def fileno(self) -> int:
        return 0

    def setblocking(self, flag: bool) -> None: ...

    def accept(self) -> tuple[_Socket, tuple[str, int]]:
        rendezvous = self._rendezvous
        if not rendezvous.queue:
            raise BlockingIOError
        rendezvous.now += rendezvous.step
        connection = rendezvous.queue.popleft()
        rendezvous.ready[connection.fileno()] = connection.is_ready
        return connection, ("10.0.0.2", 1)


class _Socket:
    """One end of a connection: rank 0's, or a client's where `on_change` is told that something has come."""

    def __init__(self, rendezvous: Rendezvous, on_change: Callable[[], None] | None = None) -> None:
        self._rendezvous = rendezvous
        self._number = next(rendezvous.numbers)
        self._on_change = on_change
        self._come = bytearray()
        self._is_over = self._is_closed = False
        self.peer = self

    def fileno(self) -> int:
        return self._number

    def getsockname(self) -> tuple[str, int]:
        return _AT

    def setblocking(self, flag: bool) -> None: ...

    def setsockopt(self, *_: object) -> None: ...

    def send(self, data: bytes) -> int:
        rendezvous = self._rendezvous
        if self._on_change is None:
            rendezvous.now += rendezvous.step
        self._tell(bytes(data))
        return len(data)

    def close(self) -> None:
        self._is_closed = True
        self._tell(b"")

    def _tell(self, data: bytes) -> None:
        rendezvous, peer = self._rendezvous, self.peer
        if self._on_change is None:
            when = rendezvous.now + rendezvous.machine.wake
        else:
            when = rendezvous.then + rendezvous.machine.system_call
        rendezvous.at(when + rendezvous.machine.latency, lambda: peer.take(data))

    def take(self, data: bytes) -> None:
        """Something has come, or the end."""
        self._come += data
        self._is_over |= not data
        if self._on_change is not None:
            self._on_change()
        else:
            self._rendezvous.ready[self._number] = self.is_ready

    def is_ready(self, mask: int) -> bool:
        return (mask == _OUT or bool(self._come) or self._is_over) and not self._is_closed

    def recv(self, size: int) -> bytes:
        if not self.is_ready(_IN):
            raise BlockingIOError
        taken = bytes(self._come[:size])
        del self._come[:size]
        return taken


class _Client:
    """A rank that connects with rank 0, and then once more for its alarm."""

    def __init__(self, rendezvous: Rendezvous, member: Member, size: int, when: float) -> None:
        self._rendezvous = rendezvous
        self._purposes = [CONTROL, ALARM]
        self._member, self._size = member, size
        self._handshake: NonblockingHandshake[Any] | None = None
        rendezvous.at(when + rendezvous.machine.latency, self._ask)

    def _ask(self, tries: int = 0) -> None:
        """Ask for a connection; ask again where the queue is full."""
        rendezvous = self._rendezvous
        if len(rendezvous.queue) >= _QUEUE:
            rendezvous.at(rendezvous.then + _RETRIES[min(tries, 2)], lambda: self._ask(tries + 1))
            return
        self._socket, there = _Socket(rendezvous, self._go_on), _Socket(rendezvous)
        self._socket.peer, there.peer = there, self._socket
        end: Any = self._socket
        self._handshake = NonblockingHandshake(end, client_handshake(_KEY, context(_AT)))
        rendezvous.at(rendezvous.then + 2 * rendezvous.machine.latency, lambda: rendezvous.enqueue(there))

    def _go_on(self) -> None:
        try:
            if self._handshake is None:
                self._acknowledged()
            elif self._handshake.advance():
                told = {"purpose": self._purposes[0], "size": self._size, "member": astuple(self._member)}
                text = json.dumps(told).encode()
                self._socket.send(LENGTH.pack(len(text)) + text)
                self._handshake = None
        except (OSError, BootstrapError):
            self._rendezvous.dropped += 1
            self._rendezvous.at(self._rendezvous.then + PAUSE, self._ask)

    def _acknowledged(self) -> None:
        if self._socket.recv(1) != ACKNOWLEDGEMENT:
            raise ConnectionResetError
        del self._purposes[0]
        if self._purposes:
            self._rendezvous.at(self._rendezvous.then + self._rendezvous.machine.latency, self._ask)
