"""The network: a rank's connections with the ranks of other hosts, and how it learns that a rank is gone.

Each rank on another host than rank 0's has two connections with rank 0: one for the messages of the control plane, and
the alarm connection, which only carries single bytes. A message waits until a thread makes progress. An alarm wakes the
engine's own thread to make progress. Besides, a rank has the connections of its rail (see `links`).

A rank learns in three ways that another rank is gone. Rank 0 sees the end of its connections and tells all other ranks.
A rank that leaves or fails announces this in its last message. The ends of a broken stream notice it themselves, but
they do not know the reason, so they wait for `REASON_TIMEOUT` for a better one.
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
from distrun.runtime.transport.channel import Channel, ChannelSwap
from distrun.runtime.transport.connections import SILENT, ConnectionSet, Stream, reason_of
from distrun.runtime.transport.rendezvous.protocol import Addresses, Member
from distrun.runtime.transport.shared_memory.segment import FAILED, LEFT
from distrun.runtime.transport.shared_memory.swap import Prepare

_LEFT, _FAILED = b"\x01", b"\x02"  # first bytes of messages to the network itself
_MAX_REASON = 4000
_RANK = struct.Struct("<I")
_ALARM, _COMPLAINT = b"!", b"#"  # the bytes that alarms send
CLOSE_TIMEOUT = 20.0
"""Seconds that a leaving rank waits for others to receive its pending messages."""
REASON_TIMEOUT = 0.5
"""Seconds that a rank that finds a connection broken waits for a message with the reason."""


class Companion(Protocol):
    """Another transport between hosts, such as MPI, which makes progress only when it is called."""

    due: float
    """When to call `progress`, by the waking clock."""

    def progress(self) -> None:
        """Make progress, and set `due` to the next time."""


class DirectLink(NamedTuple):
    """The message connection with one rank, for a caller that waits for this rank only."""

    look: Callable[[], None]
    """Receives what has arrived from the rank."""
    inbox: deque[tuple[int, bytes]]
    """Received messages, of any rank, with the ranks that sent them."""
    swap: Prepare | None = None
    """Prepares swaps of small arrays, if there are any."""


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
        """`members` are all ranks, in rank order. `control` has the message connections by rank: with all ranks of
        other hosts on rank 0, with rank 0 on other hosts, none elsewhere. `alarms` are the alarm connections, likewise.
        A host that does not answer for `keepalive` seconds counts as gone; 0 for never."""
        self.rank = rank
        """The number of this rank."""
        self._members = members
        self._keepalive = keepalive
        self.addresses: Addresses | None = None
        """The addresses for further connections. None in tests."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when the connections are closed after the job has failed."""
        self._connections = ConnectionSet()
        self.fd = self._connections.fd
        self.inbox: deque[tuple[int, bytes]] = deque()
        """Received messages that have not been taken yet, with the ranks that sent them."""
        self._channels = {
            peer: Channel(self._connections, connection, partial(self._on_message, peer), partial(self._on_close, peer))
            for peer, connection in control.items()
        }
        for connection in control.values():
            # A stopped rank does not read although its host is alive, so unread data must not end this connection. Dead
            # hosts are noticed on the alarm connections, which have hardly any unread data.
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
        """Ranks that have reported by an alarm that their messages to this rank are not acknowledged, and have sent
        none since."""
        self._alarm_ends: dict[int, str] = {}
        """The errors of alarm connections, by peer. Their keepalives are the first to notice that a host is gone."""
        self.is_over = False
        """Whether there is a `failure` or a `departure`."""
        self._left: dict[int, str] = {}
        self.has_leaders = False
        """Whether the job has a control tree, where leaders pass messages on to other ranks."""
        self.failure: str | None = None
        """Why the job cannot continue, once that is certain."""
        self._suspicion: tuple[float, str] | None = None
        """The time when a broken stream counts as a failure unless a reason has arrived before, and the text for it."""
        self._streams: dict[int, Stream] = {}
        self._interval = keepalive_times(keepalive)[1]
        self._next_check = float("inf")
        """When to check that sent data is still acknowledged: the kernel would count retries, which takes longer."""
        self.progress = self._connections.progress
        self._companion: Companion | None = None
        self._is_ours = True
        self._is_closed = False

    def stream(self, rank: int, connection: socket.socket) -> Stream:
        """Take over a `connection` with `rank` that carries arrays."""
        # A peer that is stopped or computes for a minute does not read although it is alive, so the kernel must not end
        # the connection because data has waited for long. Dead hosts are noticed on the alarm connections.
        set_tcp_options(connection, self._keepalive, may_be_unread=True)
        stream = self._streams[rank] = Stream(self._connections, connection, partial(self._suspect, rank))
        if self._keepalive:
            self._next_check = waking_clock.now() + self._interval
        return stream

    def accompany(self, companion: Companion) -> None:
        """Make `companion` progress in `progress` as well, when it is due and unless the job has failed."""
        connections_progress = self.progress

        def progress() -> None:
            connections_progress()  # first, since it may find that a rank is gone
            if self.failure is None and waking_clock.now() >= companion.due:
                companion.progress()

        self._companion, self.progress = companion, progress

    def _check_streams(self) -> None:
        """End busy streams whose peer has acknowledged nothing for `keepalive` seconds and one interval."""
        self._next_check = waking_clock.now() + self._interval
        for stream in self._streams.values():
            if stream.is_sending or stream.is_receiving:
                stream.give_up_if_silent(self._keepalive + self._interval)

    @property
    def peers(self) -> list[int]:
        """The ranks that this one is connected with."""
        return sorted({*self._channels, *self._streams})

    def sockets_with(self, rank: int) -> list[socket.socket]:
        """Return the sockets of all connections with `rank`. Some may be closed."""
        connections = [kind[rank].socket for kind in (self._channels, self._streams) if rank in kind]
        return connections + ([self._alarms[rank]] if rank in self._alarms else [])

    # Messages -------------------------------------------------------------------------------------------------------

    def send(self, rank: int, message: bytes) -> None:
        """Send `message` to `rank` without blocking. It is lost if the rank is gone."""
        self._channels[rank].send(message)

    def direct_link(self, rank: int) -> DirectLink:
        """Return the message connection with `rank`, which this rank exchanges messages with."""
        channel = self._channels[rank]
        return DirectLink(channel.look, self.inbox, ChannelSwap(channel).prepare)

    def alarm(self, rank: int, is_complaint: bool = False) -> None:
        """Wake the engine thread of `rank`. A complaint reports that this rank's messages to it are not
        acknowledged."""
        connection = self._alarms.get(rank)
        try:
            if connection is not None:
                connection.send(_COMPLAINT if is_complaint else _ALARM)
        except OSError:
            pass  # the rank is gone, or has many unread alarms

    def hear_alarms(self) -> bool:
        """Receive alarms, and return whether there were any. Only the engine's own thread calls it."""
        has_alarms = False
        for fd, _ in self._alarm_poll.poll(0):
            try:
                data = self._alarms[self._alarm_peers[fd]].recv(4096)
            except BlockingIOError:
                continue
            except OSError as error:
                # The host is gone, so nothing will arrive on the message connection either. Shutting that down ends it
                # without an error, so the reason is saved for it first.
                peer = self._alarm_peers[fd]
                self._alarm_ends[peer] = reason_of(error)
                self._channels[peer].shut_down()
                data = b""
            has_alarms = True
            if _COMPLAINT in data:
                self.complaints.add(self._alarm_peers[fd])
            if not data:
                self._alarm_poll.unregister(fd)  # the rank is gone, and its channel gives the reason
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
        """Pass on `message`, that the rank `about` has left, to all connected ranks except `source` and `about`.

        Rank 0 passes it to all ranks, a leader to the ranks above and below it.
        """
        for peer, channel in self._channels.items():
            if peer not in (source, about):
                channel.send(message)
                if self.has_leaders:  # a rank behind it may wait for the message while it is busy itself
                    self.alarm(peer)

    def note_departure(self, why: str) -> None:
        """Record that a rank of another host has left. A local peer has reported it."""
        self._left.setdefault(-1, why)  # without the rank's number: the sentence names it
        self.is_over = True

    def pass_on_departure(self, rank: int, why: str) -> None:
        """Tell the other hosts that `rank` has left in an orderly way. `why` is a sentence about it.

        The rank is on this host and has no connections itself.
        """
        self._relay(self.rank, rank, _LEFT + _RANK.pack(rank) + why.encode()[:_MAX_REASON])

    # Failures and departures ----------------------------------------------------------------------------------------

    def _on_close(self, peer: int, how: str) -> None:
        if peer not in self._left:
            self._fail(self._ended(peer, self._alarm_ends.get(peer, how)))

    def _ended(self, peer: int, how: str) -> str:
        """Return a sentence about `peer`, whose connection has ended. `how` is the error."""
        who = self.describe(peer)
        if how == SILENT and (why := link_health.unanswered(self, peer)):
            return f"{who} cannot be reached any more: {why}"
        return f"{who} is gone: {how}"

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        self.is_over = True

    def _suspect(self, peer: int, how: str) -> None:
        if self._suspicion is None:
            text = self._left.get(peer) or self._ended(peer, how)
            # After a timeout, the peer will not send a reason, so this rank does not wait for one. It must report its
            # own at once: the peer sees only a broken connection, and waits `REASON_TIMEOUT` for the reason.
            timeout = 0.0 if how == SILENT else REASON_TIMEOUT
            self._suspicion = waking_clock.now() + timeout, text

    def trouble(self) -> str | None:
        """Return why an operation that has begun cannot complete, or None if no such reason is known."""
        if self.failure is not None:
            return self.failure
        if waking_clock.now() >= self._next_check:
            self._check_streams()
        if self._suspicion is not None and waking_clock.now() >= self._suspicion[0]:
            return self._suspicion[1]
        return None

    def departure_of(self, rank: int) -> str | None:
        """Return a sentence if `rank`, of another host, has left in an orderly way, else None. Any thread may call."""
        return self._left.get(rank)

    @property
    def departure(self) -> str | None:
        """A sentence about a rank that has left in an orderly way, or None.

        Operations that have begun continue, because the rank did its part before it left. No operation can begin.
        """
        return next(iter(self._left.values()), None)

    @property
    def next_look(self) -> float:
        """The time, by the waking clock, to call `trouble` or `progress` again even if nothing has arrived."""
        if self._suspicion is not None:
            return self._suspicion[0]
        for stream in self._streams.values():
            if stream.is_receiving or stream.is_sending:
                return self._next_check
        return self.companion_due

    @property
    def companion_due(self) -> float:
        """When `progress` must be called even if no thread waits, by the waking clock."""
        return float("inf") if self._companion is None else self._companion.due

    def describe(self, rank: int) -> str:
        """Return a text that names `rank`: `rank 5 (process 4242 on host beta)`."""
        return str(self._members[rank])

    def hostname(self, rank: int) -> str:
        """Return the name of the host of `rank`."""
        return self._members[rank].hostname

    def announce(self, state: int, reason: str = "") -> None:
        """Tell all connected ranks that this rank leaves (`LEFT`) or that the job has failed (`FAILED`), and why."""
        if not self._is_ours:
            return
        me = self.describe(self.rank)
        if state == LEFT:
            message = _LEFT + _RANK.pack(self.rank) + f"{me} has left: {reason}".encode()[:_MAX_REASON]
        elif state == FAILED:
            text = self.failure or f"{me} failed: {reason}"
            message = _FAILED + text.encode()[:_MAX_REASON]
        else:
            return
        for peer, channel in self._channels.items():
            channel.send(message)
            self.alarm(peer)

    @property
    def is_sending(self) -> bool:
        """Whether messages are waiting in this process because the kernel's buffers are full."""
        return any(channel.is_sending for channel in self._channels.values())

    def close(self, is_hurried: bool = False) -> None:
        """Close all connections once all messages have been sent, or after `CLOSE_TIMEOUT` seconds.

        If `is_hurried`, only the reason of this rank's end still matters to others, and the limit is `REASON_TIMEOUT`.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self.failure is not None:
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
        # If a signal handler forked, the wait that it interrupted continues in this child, until it sees `stop_reason`.
        self.progress, self._companion = lambda: None, None
        self._connections.disown()
        self._alarm_poll.close()
        for connection in self._alarms.values():
            os.close(connection.detach())
