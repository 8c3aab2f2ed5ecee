"""The network: a rank's connections with the ranks of other hosts, and what they tell about ranks that are gone.

Each rank on another host than rank 0's has two connections with rank 0: one for the messages of the control plane, and
one, the alarm, that only ever carries single bytes. A message waits until a thread makes progress; an alarm wakes the
engine's own thread to do so. With the connections of its rail (see `links`) that is all a rank needs.

That a rank is gone is learned in three ways: rank 0 sees the end of its connections and tells everybody else; a rank
that leaves or fails says so with its last message; and the ends of a broken stream notice it themselves. These know
least about the reason, so they wait a moment for a better one.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from distrun.host.connections.tcp_options import DEAD_HOST_TIMEOUT, keepalive_times, set_tcp_options
from distrun.runtime.operations import waking_clock
from distrun.runtime.transport import link_health
from distrun.runtime.transport.connections import SILENT, Channel, ConnectionSet, Stream, reason_of
from distrun.runtime.transport.rendezvous.protocol import Addresses, Member
from distrun.runtime.transport.shared_memory.segment import FAILED, LEFT

_LEFT, _FAILED = b"\x01", b"\x02"  # first bytes of the messages that are for the network itself
_MAX_REASON = 4000
_RANK = struct.Struct("<I")
_ALARM, _COMPLAINT = b"!", b"#"  # what alarms carry
CLOSE_TIMEOUT = 20.0
"""Seconds that a rank which leaves gives others to take what they have not taken yet."""
REASON_TIMEOUT = 0.5
"""Seconds that a rank which finds a connection broken waits to be told why."""


class Companion(Protocol):
    """Another way between hosts, which makes progress only while it is called."""

    due: float
    """When it wants to be called, by the waking clock."""

    def progress(self) -> None:
        """Make progress, and set the next time."""


class DirectLink(NamedTuple):
    """The connection for messages with one rank, for callers that wait for nothing else."""

    look: Callable[[], None]
    """Takes what has come from the rank."""
    inbox: deque[tuple[int, bytes]]
    """Messages that have come, from any rank, with the ranks that sent them."""


class Network:
    """The connections of this rank with ranks of other hosts."""

    def __init__(
        self,
        rank: int,
        members: Sequence[Member],
        control: Mapping[int, socket.socket],
        alarms: Mapping[int, socket.socket],
        keepalive: float = DEAD_HOST_TIMEOUT,
    ) -> None:
        """
        Args:
            rank: the number of this rank.
            members: all ranks, in rank order.
            control: the connections for messages by rank: all on rank 0, the one with rank 0 elsewhere, none on rank
            0's host.
            alarms: the connections for alarms in the same way.
            silence: seconds after which a host that does not answer counts as gone; 0: never.
        """
        self.rank = rank
        """Our own."""
        self._members = members
        self._keepalive = keepalive
        self.addresses: Addresses | None = None
        """How to make further connections; None in tests."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when the connections of a job that has failed are closed."""
        self._connections = ConnectionSet()
        self.fd = self._connections.fd
        self.inbox: deque[tuple[int, bytes]] = deque()
        """Messages that have come and were not taken yet, with the ranks that sent them."""
        self._channels = {
            peer: Channel(self._connections, connection, partial(self._on_message, peer), partial(self._on_close, peer))
            for peer, connection in control.items()
        }
        for connection in control.values():
            # A rank that is stopped does not read, and its host is not dead. Dead hosts are noticed by the alarms,
            # where nothing waits.
            set_tcp_options(connection, keepalive, may_be_unread=True)
        self._alarms = dict(alarms)
        self._alarm_poll = select.epoll()
        self.alarm_fd = self._alarm_poll.fileno()
        """Readable when the engine's own thread should make progress."""
        for connection in self._alarms.values():
            set_tcp_options(connection, keepalive)
            connection.setblocking(False)
            self._alarm_poll.register(connection.fileno(), select.EPOLLIN)
        self._alarm_peers = {connection.fileno(): peer for peer, connection in alarms.items()}
        self.complaints: set[int] = set()
        """Ranks that have said by alarm that what they send to us is not acknowledged, and were not heard since."""
        self._alarm_ends: dict[int, str] = {}
        """How alarms ended in an error, by peer: their keepalives are the first to notice that a host is gone."""
        self.is_over = False
        """Whether there is a `failure` or a `departure`."""
        self._left: dict[int, str] = {}
        self.has_leaders = False
        """Whether those that we have connections with pass on what they hear to others: in a control tree."""
        self._failure: str | None = None
        self._suspicion: tuple[float, str] | None = None
        """When a stream that has ended is trouble, unless it is explained before, and the text of that."""
        self._streams: dict[int, Stream] = {}
        self._interval = keepalive_times(keepalive)[1]
        self._next_check = float("inf")
        """When to see whether data that was sent is still answered: the kernel counts retries, which takes longer."""
        self.progress = self._connections.progress
        self._companion: Companion | None = None
        self._is_ours = True
        self._is_closed = False

    def stream(self, rank: int, connection: socket.socket) -> Stream:
        """Take over a connection for arrays."""
        # A peer that is stopped, or computes for a minute, does not read and is alive: the kernel must not give up on
        # what has waited for long. Dead hosts are noticed on the alarm connections.
        set_tcp_options(connection, self._keepalive, may_be_unread=True)
        stream = self._streams[rank] = Stream(self._connections, connection, partial(self._suspect, rank))
        if self._keepalive:
            self._next_check = waking_clock.now() + self._interval
        return stream

    def accompany(self, companion: Companion) -> None:
        """Have something else make progress too, when it is due and the job has not failed."""
        connections_progress = self.progress

        def progress() -> None:
            connections_progress()  # it must hear first of ranks that are gone
            if self._failure is None and waking_clock.now() >= companion.due:
                companion.progress()

        self._companion, self.progress = companion, progress

    def _check_streams(self) -> None:
        """Give up streams on which nothing is answered any more though something is under way."""
        self._next_check = waking_clock.now() + self._interval
        for stream in self._streams.values():
            if stream.is_sending or stream.is_receiving:
                stream.give_up_if_silent(self._keepalive + self._interval)

    @property
    def peers(self) -> list[int]:
        """The ranks that this one has connections with."""
        return sorted({*self._channels, *self._streams})

    def sockets_with(self, rank: int) -> list[socket.socket]:
        """Return the sockets of all connections with a rank; some may be closed."""
        connections = [kind[rank].socket for kind in (self._channels, self._streams) if rank in kind]
        return connections + ([self._alarms[rank]] if rank in self._alarms else [])

    # Messages -------------------------------------------------------------------------------------------------------

    def send(self, rank: int, message: bytes) -> None:
        """Send a message; never blocks. It is lost when the rank is gone."""
        self._channels[rank].send(message)

    def direct_link(self, rank: int) -> DirectLink:
        """Return the line with a rank that this one exchanges messages with."""
        return DirectLink(self._channels[rank].look, self.inbox)

    def alarm(self, rank: int, is_complaint: bool = False) -> None:
        """Wake the thread of a rank's engine, perhaps to say that what we send to it is not acknowledged."""
        connection = self._alarms.get(rank)
        try:
            if connection is not None:
                connection.send(_COMPLAINT if is_complaint else _ALARM)
        except OSError:
            pass  # the rank is gone, or has many alarms that it has not read yet

    def hear_alarms(self) -> bool:
        """Take the alarms that have come; returns whether there were any. Called by the engine's own thread alone."""
        has_alarms = False
        for fd, _ in self._alarm_poll.poll(0):
            try:
                data = self._alarms[self._alarm_peers[fd]].recv(4096)
            except BlockingIOError:
                continue
            except OSError as error:
                # Its host is gone, and nothing more will come on the other connection either. That one then ends
                # without an error of its own, so the reason is kept for it first.
                peer = self._alarm_peers[fd]
                self._alarm_ends[peer] = reason_of(error)
                self._channels[peer].shut_down()
                data = b""
            has_alarms = True
            if _COMPLAINT in data:
                self.complaints.add(self._alarm_peers[fd])
            if not data:
                self._alarm_poll.unregister(fd)  # the rank is gone; its channel tells more
        return has_alarms

    def _on_message(self, peer: int, message: bytes) -> None:
        if self.complaints:
            self.complaints.discard(peer)
        letter = message[:1]
        if letter == _LEFT:
            (about,) = _RANK.unpack_from(message, 1)
            self._left.setdefault(about, message[1 + _RANK.size :].decode(errors="replace"))
            self.is_over = True
            self._relay(peer, about, message)
        elif letter == _FAILED:
            self._fail(message[1:].decode(errors="replace"))
        else:
            self.inbox.append((peer, message))

    def _relay(self, source: int, about: int, message: bytes) -> None:
        """Pass on that a rank has left: rank 0 to all others, a leader to those above and below it."""
        for peer, channel in self._channels.items():
            if peer not in (source, about):
                channel.send(message)
                if self.has_leaders:  # some rank behind it may wait, while it is about other things itself
                    self.alarm(peer)

    def note_departure(self, why: str) -> None:
        """Note that some rank of another host has left: we hear it from a peer."""
        self._left.setdefault(-1, why)  # of no rank by its number: the sentence names it
        self.is_over = True

    def pass_on_departure(self, rank: int, why: str) -> None:
        """Tell the other hosts that a rank of this one, which has no connections of its own, has left in an orderly
        way; `why` is a sentence about it."""
        self._relay(self.rank, rank, _LEFT + _RANK.pack(rank) + why.encode()[:_MAX_REASON])

    # Trouble --------------------------------------------------------------------------------------------------------

    def _on_close(self, peer: int, how: str) -> None:
        if peer not in self._left:
            self._fail(self._ended(peer, self._alarm_ends.get(peer, how)))

    def _ended(self, peer: int, how: str) -> str:
        """Return a sentence about a rank whose connection has ended."""
        who = self.describe(peer)
        if how == SILENT and (why := link_health.unanswered(self, peer)):
            return f"{who} cannot be reached any more: {why}"
        return f"{who} is gone: {how}"

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self.is_over = True

    def _suspect(self, peer: int, how: str) -> None:
        if self._suspicion is None:
            text = self._left.get(peer) or self._ended(peer, how)
            # After so long a silence no word can be expected. The peer sees a broken connection, and has to be told.
            timeout = 0.0 if how == SILENT else REASON_TIMEOUT
            self._suspicion = waking_clock.now() + timeout, text

    @property
    def failure(self) -> str | None:
        """Why the job cannot go on, once that is known for certain; None before."""
        return self._failure

    def trouble(self) -> str | None:
        """Return why an operation that has begun cannot complete; None when nothing of the kind is known."""
        if self._failure is not None:
            return self._failure
        if waking_clock.now() >= self._next_check:
            self._check_streams()
        if self._suspicion is not None and waking_clock.now() >= self._suspicion[0]:
            return self._suspicion[1]
        return None

    def departure_of(self, rank: int) -> str | None:
        """Return a sentence about a rank of another host that has left in an orderly way; any thread may ask."""
        return self._left.get(rank)

    @property
    def departure(self) -> str | None:
        """A sentence about a rank that has left in an orderly way; None when none has.

        Operations that have begun go on: the rank that has left has done its part, and what it sent is on its way.
        Nothing new can begin.
        """
        return next(iter(self._left.values()), None)

    @property
    def next_look(self) -> float:
        """The time of the waking clock at which `trouble` may know more though nothing has come, or something is
        due."""
        if self._suspicion is not None:
            return self._suspicion[0]
        for stream in self._streams.values():
            if stream.is_receiving or stream.is_sending:
                return self._next_check
        return self.companion_due

    @property
    def companion_due(self) -> float:
        """When `progress` has something to do although nobody waits for anything."""
        return float("inf") if self._companion is None else self._companion.due

    def describe(self, rank: int) -> str:
        """Return a rank for people: `rank 5 (process 4242 on host beta)`."""
        return str(self._members[rank])

    def hostname(self, rank: int) -> str:
        """Return the name of a rank's host for people."""
        return self._members[rank].hostname

    def announce(self, state: int, reason: str = "") -> None:
        """Tell the ranks we have connections with that we leave, or that the job has failed, and why."""
        if not self._is_ours:
            return
        me = self.describe(self.rank)
        if state == LEFT:
            message = _LEFT + _RANK.pack(self.rank) + f"{me} has left: {reason}".encode()[:_MAX_REASON]
        elif state == FAILED:
            text = self._failure or f"{me} failed: {reason}"
            message = _FAILED + text.encode()[:_MAX_REASON]
        else:
            return
        for peer, channel in self._channels.items():
            channel.send(message)
            self.alarm(peer)

    @property
    def is_sending(self) -> bool:
        """Whether messages wait here because the kernel's buffers are full."""
        return any(channel.is_sending for channel in self._channels.values())

    def close(self, is_hurried: bool = False) -> None:
        """Close all connections when what was sent has left, or after `CLOSE_TIMEOUT`; `is_hurried`: nobody waits for
        what was sent but for the reason why we go, so after `REASON_TIMEOUT`."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._failure is not None:
            self.on_failure()
        deadline = time.monotonic() + (REASON_TIMEOUT if is_hurried else CLOSE_TIMEOUT)
        with select.epoll() as waiting:
            # An epoll object is readable itself when one of its connections is ready.
            waiting.register(self.fd, select.EPOLLIN)
            while self.is_sending and (left := deadline - time.monotonic()) > 0:
                waiting.poll(left)
                self.progress()
        self._connections.close()
        self._alarm_poll.close()
        for connection in self._alarms.values():
            connection.close()

    def disown(self) -> None:
        """Close a forked child's copies of the connections."""
        self._is_ours, self._is_closed = False, True
        # A signal handler may have forked: the wait that it has interrupted goes on here, until it sees why to end.
        self.progress, self._companion = lambda: None, None
        self._connections.disown()
        self._alarm_poll.close()
        for connection in self._alarms.values():
            os.close(connection.detach())
