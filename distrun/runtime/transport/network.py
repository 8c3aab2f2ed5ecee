"""The network: what a rank has to do with the ranks of other hosts, apart from moving arrays.

Each rank on another host than rank 0's has two connections with rank 0: one for the messages of the control plane, and one,
the alarm, that only ever carries single bytes. A message waits until somebody drives the engine; an alarm wakes the
engine's own thread to see to that. With the connections to its lane (see `links`) that is all a rank needs.

Who is gone is known from three sides: rank 0 sees the end of a rank's connections and tells everybody else; a rank that
leaves or fails says so with its last message; and the ends of a broken stream notice it themselves. The last know least about
the reason, so they wait a moment for somebody who knows more.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

from distrun.runtime.rendezvous.across_hosts import Member
from distrun.runtime.rendezvous.handshake import tune
from distrun.runtime.shared_memory.segment import FAILED, LEFT
from distrun.runtime.transport.connections import Channel, ConnectionSet, Stream

_LEFT, _FAILED = b"\x01", b"\x02"  # first bytes of the messages that the network keeps for itself
_LONGEST_REASON = 4000
_RANK = struct.Struct("<I")
LAST_WORDS = 20.0
"""Seconds that a rank which leaves gives others to take what they have not taken yet."""
HEARSAY = 0.5
"""Seconds a rank that finds a connection broken waits to be told why."""


class Network:
    """This rank among the ranks of the other hosts."""

    def __init__(
        self,
        rank: int,
        members: Sequence[Member],
        control: Mapping[int, socket.socket],
        alarms: Mapping[int, socket.socket],
    ) -> None:
        """`control` and `alarms` are the connections by rank: all on rank 0, the one to rank 0 elsewhere, none on rank 0's
        host."""
        self._rank = rank
        self._members = members
        self.wire = ConnectionSet()
        self.fd = self.wire.fd
        self.inbox: deque[tuple[int, bytes]] = deque()
        """Messages that have come and were not taken yet, with their senders."""
        self._channels = {
            peer: Channel(self.wire, connection, partial(self._hear, peer), partial(self._end, peer))
            for peer, connection in control.items()
        }
        for connection in control.values():
            # A rank that is stopped does not read, and is no dead host. Those are seen by the alarm, where nothing ever waits.
            tune(connection, timeout=0)
        self._alarms = dict(alarms)
        self._alarm_poll = select.epoll()
        self.alarm_fd = self._alarm_poll.fileno()
        """Readable when the engine's thread should see to something."""
        for connection in self._alarms.values():
            connection.setblocking(False)
            self._alarm_poll.register(connection.fileno(), select.EPOLLIN)
        self._alarmers = {connection.fileno(): peer for peer, connection in alarms.items()}
        self.is_over = False
        """Whether there is a `failure` or a `departure`."""
        self._left: dict[int, str] = {}
        self._failure: str | None = None
        self._suspicion: tuple[float, str] | None = None
        self.progress = self.wire.progress
        self._is_ours = True
        self._is_closed = False

    def stream(self, rank: int, connection: socket.socket) -> Stream:
        """Look after a connection for arrays."""
        return Stream(self.wire, connection, partial(self._suspect, rank))

    # Messages -------------------------------------------------------------------------------------------------------

    def send(self, rank: int, message: bytes) -> None:
        """Send a message; never blocks. Nobody hears it when the rank is gone."""
        self._channels[rank].send(message)

    def alarm(self, rank: int) -> None:
        """Wake a rank's engine."""
        try:
            self._alarms[rank].send(b"!")
        except OSError:  # it has been alarmed many times and has not looked, or it is gone
            pass

    def hear_alarms(self) -> bool:
        """Whether alarms have come since the last call; by the engine's own thread."""
        heard = False
        for fd, _ in self._alarm_poll.poll(0):
            try:
                data = os.read(fd, 4096)
            except BlockingIOError:
                continue
            except OSError:  # its host is gone, and nothing more will come from there
                self._channels[self._alarmers[fd]].hang_up()
                data = b""
            heard = True
            if not data:
                self._alarm_poll.unregister(fd)  # it is gone; its channel tells more
        return heard

    def _hear(self, peer: int, message: bytes) -> None:
        letter = message[:1]
        if letter == _LEFT:
            (about,) = _RANK.unpack_from(message, 1)
            self._left.setdefault(about, message[1 + _RANK.size :].decode(errors="replace"))
            self.is_over = True
            self._relay(about, message)
        elif letter == _FAILED:
            self._fail(message[1:].decode(errors="replace"))
        else:
            self.inbox.append((peer, message))

    def _relay(self, about: int, message: bytes) -> None:
        if self._rank == 0:
            for peer, channel in self._channels.items():
                if peer != about:
                    channel.send(message)

    # Trouble --------------------------------------------------------------------------------------------------------

    def _end(self, peer: int, how: str) -> None:
        if peer not in self._left:
            self._fail(f"{self.describe(peer)} is gone: {how}")

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self.is_over = True

    def _suspect(self, peer: int, how: str) -> None:
        if self._suspicion is None:
            text = self._left.get(peer) or f"{self.describe(peer)} is gone: {how}"
            self._suspicion = time.monotonic(), text

    @property
    def failure(self) -> str | None:
        """Why the job cannot go on, once that is known for certain."""
        return self._failure

    def trouble(self) -> str | None:
        """Why an operation that has begun cannot be carried out; None when nothing of the kind is known."""
        if self._failure is not None:
            return self._failure
        if self._suspicion is not None and time.monotonic() >= self._suspicion[0] + HEARSAY:
            return self._suspicion[1]
        return None

    @property
    def departure(self) -> str | None:
        """Who has left in an orderly way, if anybody has.

        That is no trouble for an operation that has begun: whoever has left has done its part of it, and what it sent is on its
        way. Nothing new can begin.
        """
        return next(iter(self._left.values()), None)

    @property
    def next_look(self) -> float:
        """The monotonic time at which `trouble` may know more though nothing has come."""
        return float("inf") if self._suspicion is None else self._suspicion[0] + HEARSAY

    def describe(self, rank: int) -> str:
        """A rank for people: `rank 5 (process 4242 on host beta)`."""
        member = self._members[rank]
        return f"rank {rank} (process {member.pid} on host {member.hostname})"

    def announce(self, state: int, reason: str = "") -> None:
        """Tell those we have connections with that we leave or that the job has failed, and why."""
        if not self._is_ours:
            return
        me = self.describe(self._rank)
        if state == LEFT:
            message = _LEFT + _RANK.pack(self._rank) + f"{me} has left: {reason}".encode()[:_LONGEST_REASON]
        elif state == FAILED:
            text = self._failure or f"{me} failed: {reason}"
            message = _FAILED + text.encode()[:_LONGEST_REASON]
        else:
            return
        for peer, channel in self._channels.items():
            channel.send(message)
            self.alarm(peer)

    @property
    def is_sending(self) -> bool:
        """Whether there are messages that the other side has not taken."""
        return any(channel.is_sending for channel in self._channels.values())

    def close(self) -> None:
        """Close all connections, when what we had to say has left."""
        if self._is_closed:
            return
        self._is_closed = True
        deadline = time.monotonic() + LAST_WORDS
        with select.epoll() as waiting:  # of an epoll object: readable when one of its connections is ready
            waiting.register(self.fd, select.EPOLLIN)
            while self.is_sending and (left := deadline - time.monotonic()) > 0:
                waiting.poll(left)
                self.progress()
        self.wire.close()
        self._alarm_poll.close()
        for connection in self._alarms.values():
            connection.close()

    def disown(self) -> None:
        """In a forked child: let go of our copies of the connections."""
        self._is_ours, self._is_closed = False, True
        self.wire.disown()
        self._alarm_poll.close()
        for connection in self._alarms.values():
            os.close(connection.detach())
