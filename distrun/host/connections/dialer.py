"""Dialing: connects with a process that knows the key, at the best of its addresses that answers."""

from __future__ import annotations

import contextlib
import json
import select
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distrun.errors import BootstrapError
from distrun.host.connections.handshake import (
    ACKNOWLEDGEMENT,
    HANDSHAKE_TIMEOUT,
    LENGTH,
    MAX_INTRODUCTION,
    Introduction,
    KeySource,
)
from distrun.host.connections.target import REFUSED_PAUSE, SHORTEST_PAUSE, PeerConnection, Target, in_words
from distrun.host.endpoints import format_endpoint

_STAGGER = 0.05  # seconds between the first attempts at one endpoint and the next
_PREFERENCE = 0.25  # seconds that better endpoints have to answer after another one has


def dial(
    endpoints: Sequence[tuple[str, int]],
    key: KeySource,
    introduction: Introduction,
    deadline: float,
    source: str | None = None,
    stop_on: Sequence[int] = (),
    is_encrypted: bool = False,
) -> PeerConnection:
    """Return a connection with the first of the endpoints that answers and knows the key.

    All endpoints are tried, with short pauses between them in the given order, and repeatedly until the deadline, since
    the other side may not listen yet. The connection is complete once the other side calls `Listener.receive`.

    Args:
        endpoints: names or addresses, and ports, in order of preference.
        key: the key, or a function that finds it in the greeting of the process that answers.
        introduction: the message that introduces this process to the other side, a JSON object of at most 64 KiB.
        deadline: the `time.monotonic()` when to stop trying.
        source: the numeric local address to connect from. Endpoints of the other family (IPv4, IPv6) are tried without
            it.
        stop_on: descriptors. Stops trying once one of them is readable, which includes the end of a connection.
        is_encrypted: whether to encrypt the connection. The other side must have the same setting.

    Raises:
        BootstrapError: no process that knows the key answered in time. The text has the outcome at each endpoint.
    """
    start = time.monotonic()
    with contextlib.closing(_Dialer(endpoints, key, source, stop_on, start, is_encrypted)) as dialer:
        while True:
            peer = dialer.next_connection(deadline)
            if peer is None:
                seconds = round(time.monotonic() - start, 1)
                raise BootstrapError(f"no connection was made within {seconds:g} s: {dialer.reasons()}")
            try:
                introduce(peer.socket, introduction, deadline, stop_on)
            except OSError as error:
                peer.socket.close()
                dialer.note_failure(peer.endpoint, in_words(error))
            except BaseException:
                peer.socket.close()
                raise
            else:
                return peer


def introduce(connection: socket.socket, introduction: Introduction, deadline: float, stop_on: Sequence[int]) -> None:
    """Send the introduction to the other side after the handshake. Raises `OSError`. For the arguments see `dial`."""
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
    _targets: list[Target] = field(default_factory=list)
    """All addresses, the best first."""
    _unresolved: list[_Unresolved] = field(default_factory=list)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _held: PeerConnection | None = None
    """A connection that is complete, while better endpoints may still answer."""
    _better: list[Target] = field(default_factory=list)
    """The endpoints that are better than the endpoint of `_held` and may still answer."""
    _decision: float = float("inf")
    """The time until when they may answer."""

    def __post_init__(self) -> None:
        self._unresolved = [_Unresolved(endpoint, self.start) for endpoint in self.endpoints]
        for descriptor in self.stop_on:
            self._selector.register(descriptor, selectors.EVENT_READ)

    def next_connection(self, deadline: float) -> PeerConnection | None:
        """Return the next connection with a peer that knows the key.

        Return None at the deadline, or when one of `stop_on` is readable. A connection is returned once all better
        endpoints have failed again or had `_PREFERENCE` seconds to answer: the other side begins to listen at one
        address after the other, and the first to answer may be on a slow network.
        """
        while (now := time.monotonic()) < deadline:
            self._resolve(now)
            for target in self._targets:
                if target.next_time > now:
                    continue
                if target.connection is not None:
                    target.time_out()
                    self._failed(target)
                elif not target.attempt(self.source, now):
                    self._failed(target)
            due = min(self._next_due(), deadline)
            for event, _ in self._selector.select(max(0.0, due - time.monotonic())):
                if event.data is None:
                    return None
                target = event.data
                peer = target.advance(self.key, self.is_encrypted)
                if peer is not None:
                    self._hold(peer, target)
                elif target.connection is None:
                    self._failed(target)
            if self._held is not None and (not self._better or time.monotonic() >= self._decision):
                peer, self._held, self._decision = self._held, None, float("inf")
                return peer
        peer, self._held = self._held, None
        return peer

    def _hold(self, peer: PeerConnection, target: Target) -> None:
        """Keep `peer` if it is better than the held connection, and try endpoints that are better still at once."""
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
        """Return a text with the outcome at each endpoint."""
        told = {format_endpoint(*endpoint): "not tried" for endpoint in self.endpoints}
        told.update({format_endpoint(*name.endpoint): name.reason for name in self._unresolved if name.reason})
        for target in self._targets:
            if target.words:
                told[format_endpoint(*target.endpoint)] = target.words
        return ", ".join(f"{endpoint} ({reason})" for endpoint, reason in told.items()) or "there is no endpoint to try"

    def note_failure(self, address: tuple[str, int], reason: str) -> None:
        """Record that a connection that was returned has failed. Every endpoint that answered is tried again."""
        soon = time.monotonic() + SHORTEST_PAUSE
        for target in self._targets:
            target.due = min(target.due, soon)
            if target.address[:2] == address:
                target.reason = reason

    def close(self) -> None:
        """End all attempts."""
        for target in self._targets:
            target.end()
        if self._held is not None:
            self._held.socket.close()
        self._selector.close()

    def _next_due(self) -> float:
        """Return the time of the next action that needs no event."""
        times = [*(target.next_time for target in self._targets), *(name.due for name in self._unresolved)]
        return min([self._decision, *times])

    def _failed(self, target: Target) -> None:
        """Stop waiting for an endpoint that has failed, and try one that was not tried before."""
        if target in self._better:
            self._better.remove(target)
        untried = next((other for other in self._targets if not other.tries), None)
        if untried is not None:
            untried.due = min(untried.due, time.monotonic())

    def _resolve(self, now: float) -> None:
        """Resolve the names of endpoints that are due."""
        for name in [name for name in self._unresolved if name.due <= now]:
            try:
                found = socket.getaddrinfo(*name.endpoint, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                name.reason = f"the name is unknown: {error.strerror if isinstance(error, OSError) else error}"
                name.due = time.monotonic() + REFUSED_PAUSE
                continue
            self._unresolved.remove(name)
            for family, _, _, _, address in found:
                due = now + _STAGGER * len(self._targets)
                if all(target.address != address for target in self._targets):
                    self._targets.append(
                        Target(name.endpoint, socket.AddressFamily(family), address, self._selector, due)
                    )
