"""Dialing: connecting with a process that knows the key, at whichever of its addresses answers."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import selectors
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distrun.errors import BootstrapError, DistrunError
from distrun.host.connections.authentication import NonblockingHandshake
from distrun.host.connections.handshake import (
    ACKNOWLEDGEMENT,
    HANDSHAKE_TIMEOUT,
    LENGTH,
    MAX_INTRODUCTION,
    Introduction,
    KeySource,
    client_handshake,
    context,
    encrypted,
)
from distrun.host.connections.tcp_options import set_tcp_options
from distrun.host.endpoints import format_endpoint

if TYPE_CHECKING:
    from distrun.host.connections.tls import Session

_STAGGER = 0.05  # seconds between the first attempts at one endpoint and the next
_PREFERENCE = 0.25  # seconds in which a better endpoint may still answer once another has
# Seconds before the next attempt: after the first, at most, and at most after a failed authentication. (Who answers may
# be a rank 0 that has been left behind and is about to go.)
_SHORTEST_PAUSE, _LONGEST_PAUSE, _REFUSED_PAUSE = 0.01, 0.25, 0.5


@dataclass(frozen=True)
class PeerConnection:
    """A connection with another process, after the handshake. It blocks, has no timeout and has our TCP options."""

    socket: socket.socket
    endpoint: tuple[str, int]
    """The other side's address, in digits, and port."""
    key: bytes
    """The key that both have proved to know."""


def dial(
    endpoints: Sequence[tuple[str, int]],
    key: KeySource,
    introduction: Introduction,
    deadline: float,
    source: str | None = None,
    stop_on: Sequence[int] = (),
    is_encrypted: bool = False,
) -> PeerConnection:
    """Connect with the first of the endpoints that answers and knows the key.

    All endpoints are tried, slightly apart in the order given, and again and again until the deadline, for the other
    side may not listen yet. The connection is made once the other side is in `Listener.receive`.

    Args:
        endpoints: names or addresses, and ports; in order of preference.
        key: the key, or what finds it in the greeting of the process that answers.
        introduction: what the other side gets to know of us, a JSON object of at most 64 KiB.
        deadline: when to give up, as a `time.monotonic()`.
        source: the address of our own to connect from, in digits; endpoints of the other family (IPv4, IPv6) are
            tried all the same.
        stop_on: descriptors; gives up once one of them is readable, be it a connection that has ended.
        is_encrypted: whether the connection is encrypted, for which the other side must have decided as well.

    Raises:
        BootstrapError: no process that knows the key answered in time; the text tells what happened at each endpoint.
    """
    start = time.monotonic()
    with contextlib.closing(_Dialer(endpoints, key, source, stop_on, start, is_encrypted)) as dialer:
        while True:
            peer = dialer.next_connection(deadline)
            if peer is None:
                seconds = round(time.monotonic() - start, 1)
                raise BootstrapError(f"no connection was made within {seconds:g} s: {dialer.reasons()}")
            try:
                _introduce(peer.socket, introduction, deadline, stop_on)
            except OSError as error:
                peer.socket.close()
                dialer.note_failure(peer.endpoint, _in_words(error))
            except BaseException:
                peer.socket.close()
                raise
            else:
                return peer


def _introduce(connection: socket.socket, introduction: Introduction, deadline: float, stop_on: Sequence[int]) -> None:
    facts = introduction if isinstance(introduction, Mapping) else introduction(connection)
    message = json.dumps(dict(facts)).encode()
    if len(message) > MAX_INTRODUCTION:
        raise ValueError(f"an introduction of {len(message)} bytes is longer than {MAX_INTRODUCTION}")
    left = max(0.001, min(HANDSHAKE_TIMEOUT, deadline - time.monotonic()))
    connection.settimeout(left)
    connection.sendall(LENGTH.pack(len(message)) + message)
    if stop_on:
        poll = select.poll()
        for descriptor in (connection.fileno(), *stop_on):
            poll.register(descriptor, select.POLLIN)
        poll.poll(left * 1000)
        connection.settimeout(0.001)
    if connection.recv(len(ACKNOWLEDGEMENT)) != ACKNOWLEDGEMENT:
        raise ConnectionResetError("it closed the connection")
    connection.settimeout(None)


@dataclass(eq=False)
class _Target:
    """One address of an endpoint, and the state of the attempts to connect with it."""

    endpoint: tuple[str, int]
    """The endpoint for people, which may have a name instead of the address."""
    family: socket.AddressFamily
    address: tuple[Any, ...]
    due: float
    """The time of the next attempt."""
    pause: float = _SHORTEST_PAUSE
    reason: str = ""
    """Why the last attempt failed. That of a failed authentication is kept, as it tells more than any other."""
    is_refused: bool = False
    """Whether an authentication has failed."""
    tries: int = 0
    connection: socket.socket | None = None
    handshake: NonblockingHandshake[tuple[bytes, Session | None]] | None = None
    until: float = 0.0
    """The time at which the attempt under way is given up."""


@dataclass
class _Unresolved:
    """An endpoint whose address is not known yet."""

    endpoint: tuple[str, int]
    due: float
    reason: str = ""


@dataclass
class _Dialer:
    """Attempts to connect with several endpoints at once."""

    endpoints: Sequence[tuple[str, int]]
    key: KeySource
    source: str | None
    stop_on: Sequence[int]
    start: float
    is_encrypted: bool = False
    _targets: list[_Target] = field(default_factory=list)
    """All addresses, the best first."""
    _unresolved: list[_Unresolved] = field(default_factory=list)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _held: PeerConnection | None = None
    """A connection, while better endpoints get a last chance."""
    _better: list[_Target] = field(default_factory=list)
    """The endpoints that are better than the one of `_held`."""
    _decision: float = float("inf")
    """The time at which their last chance is over."""

    def __post_init__(self) -> None:
        self._unresolved = [_Unresolved(endpoint, self.start) for endpoint in self.endpoints]
        for descriptor in self.stop_on:
            self._selector.register(descriptor, selectors.EVENT_READ)

    def next_connection(self, deadline: float) -> PeerConnection | None:
        """Return the next connection with a peer that knows the key; None at the deadline, or when one of `stop_on` is
        readable.

        A connection counts once all better endpoints have failed again or had `_PREFERENCE` to answer too: the other
        side begins to listen at one address after the other, and the first to answer may be a slow network that nobody
        wanted.
        """
        while (now := time.monotonic()) < deadline:
            self._resolve(now)
            for target in self._targets:
                if target.connection is None and target.due <= now:
                    self._attempt(target, now)
                elif target.connection is not None and target.until <= now:
                    self._fail(target, self._timeout_reason(target))
            due = min(self._next_due(), deadline)
            for event, _ in self._selector.select(max(0.0, due - time.monotonic())):
                if event.data is None:
                    return None
                peer = self._advance(event.data)
                if peer is not None:
                    self._hold(peer, event.data)
            if self._held is not None and (not self._better or time.monotonic() >= self._decision):
                peer, self._held, self._decision = self._held, None, float("inf")
                return peer
        peer, self._held = self._held, None
        return peer

    def _hold(self, peer: PeerConnection, target: _Target) -> None:
        """Keep the better one of two connections, and give endpoints that are better still a last chance."""
        if self._held is not None:
            if target not in self._better:
                peer.socket.close()
                return
            self._held.socket.close()
            self._better = self._better[: self._better.index(target)]
        else:
            self._better = self._targets[: self._targets.index(target)]
            for better in self._better:
                better.due = 0.0
            self._decision = time.monotonic() + _PREFERENCE
        self._held = peer

    def reasons(self) -> str:
        """Return what happened at each endpoint."""
        told = {format_endpoint(*endpoint): "not tried" for endpoint in self.endpoints}
        told.update({format_endpoint(*name.endpoint): name.reason for name in self._unresolved if name.reason})
        for target in self._targets:
            reason = target.reason
            if target.connection is not None and not target.is_refused:
                reason = self._timeout_reason(target)
            if reason:
                told[format_endpoint(*target.endpoint)] = reason
        return ", ".join(f"{endpoint} ({reason})" for endpoint, reason in told.items()) or "there is no endpoint to try"

    def note_failure(self, address: tuple[str, int], reason: str) -> None:
        """Note that a connection which was returned has failed: every endpoint that answered is tried again."""
        soon = time.monotonic() + _SHORTEST_PAUSE
        for target in self._targets:
            target.due = min(target.due, soon)
            if target.address[:2] == address:
                target.reason = reason

    def close(self) -> None:
        """End all attempts."""
        for target in self._targets:
            self._end(target)
        if self._held is not None:
            self._held.socket.close()
        self._selector.close()

    def _next_due(self) -> float:
        """Return the time at which something is to be done though nothing has come."""
        times = [target.due if target.connection is None else target.until for target in self._targets]
        return min([self._decision, *times, *[name.due for name in self._unresolved]])

    def _resolve(self, now: float) -> None:
        """Find the addresses of the endpoints that have none yet."""
        for name in [name for name in self._unresolved if name.due <= now]:
            try:
                found = socket.getaddrinfo(*name.endpoint, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                name.reason = f"the name is unknown: {error.strerror if isinstance(error, OSError) else error}"
                name.due = time.monotonic() + _REFUSED_PAUSE
                continue
            self._unresolved.remove(name)
            for family, _, _, _, address in found:
                due = now + _STAGGER * len(self._targets)
                if all(target.address != address for target in self._targets):
                    self._targets.append(_Target(name.endpoint, socket.AddressFamily(family), address, due))

    def _attempt(self, target: _Target, now: float) -> None:
        """Begin to connect."""
        target.tries += 1
        target.until = now + HANDSHAKE_TIMEOUT
        try:
            connection = target.connection = socket.socket(target.family, socket.SOCK_STREAM)
            connection.setblocking(False)
            set_tcp_options(connection)
            if self.source is not None and (":" in self.source) == (target.family == socket.AF_INET6):
                connection.bind((self.source, 0))
            code = connection.connect_ex(target.address)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
            self._selector.register(connection, selectors.EVENT_WRITE, target)
        except OSError as error:
            self._fail(target, _in_words(error))

    def _advance(self, target: _Target) -> PeerConnection | None:
        """Go on with an attempt; returns the connection when the other side has proved to know the key."""
        connection = target.connection
        assert connection is not None  # only attempts under way have events
        try:
            if target.handshake is None:
                self._begin(target, connection)
            handshake = target.handshake
            assert handshake is not None
            if not handshake.advance():
                event = selectors.EVENT_WRITE if handshake.wants_to_send else selectors.EVENT_READ
                self._selector.modify(connection, event, target)
                return None
            address = connection.getpeername()
        except OSError as error:
            self._fail(target, _in_words(error))
            return None
        except DistrunError as error:
            self._fail(target, str(error), is_refused=True)
            return None
        self._selector.unregister(connection)
        target.connection = target.handshake = None
        target.due = float("inf")
        connection.setblocking(True)
        key, session = handshake.result
        return PeerConnection(encrypted(connection, session), address[:2], key)

    def _begin(self, target: _Target, connection: socket.socket) -> None:
        """Begin the handshake when the connection is made; raises `OSError` when it cannot be made."""
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        address = connection.getpeername()
        if address == connection.getsockname():
            # Where no process listens, TCP may connect a socket with itself.
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        handshake = client_handshake(self.key, context(address), self.is_encrypted)
        target.handshake = NonblockingHandshake(connection, handshake)

    def _fail(self, target: _Target, reason: str, is_refused: bool = False) -> None:
        """End an attempt that came to nothing: pause before the next, and let an endpoint that was not tried yet have
        its turn."""
        self._end(target)
        if target in self._better:
            self._better.remove(target)
        if is_refused or not target.is_refused:
            target.reason = reason
        target.is_refused |= is_refused
        now = time.monotonic()
        target.due = now + (min(_REFUSED_PAUSE, 5 * target.pause) if is_refused else target.pause)
        target.pause = min(_LONGEST_PAUSE, target.pause * 1.5)
        for other in _untried(self._targets):
            other.due = min(other.due, now)
            break

    def _end(self, target: _Target) -> None:
        if target.handshake is not None:
            target.handshake.close()
        if target.connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(target.connection)
            target.connection.close()
        target.connection = target.handshake = None

    def _timeout_reason(self, target: _Target) -> str:
        return "no answer" if target.handshake is None else "it accepts connections and says nothing"


def _untried(targets: Iterable[_Target]) -> Iterator[_Target]:
    return (target for target in targets if not target.tries)


def _in_words(error: OSError) -> str:
    """Return why a connection failed, as in `connection refused`."""
    text = error.strerror or str(error) or type(error).__name__
    return text[0].lower() + text[1:]
