"""Making calls: how a rank gets a connection with another one that knows the job key, at whichever of its addresses answers."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distrun.errors import BootstrapError, DistrunError
from distrun.host.endpoints import format_endpoint
from distrun.runtime.rendezvous.authentication import Conversation
from distrun.runtime.rendezvous.handshake import (
    HANDSHAKE_TIMEOUT,
    HEARD,
    LENGTH,
    LONGEST_INTRODUCTION,
    Introduction,
    KeySource,
    client_handshake,
    context,
    tune,
)

_STAGGER = 0.05  # seconds between the first attempts at one place and the next
_CHOICE = 0.25  # seconds in which a better place may still answer once another has
_SHORTEST_NAP, _LONGEST_NAP, _STRANGER_NAP = 0.01, 0.25, 0.5


@dataclass(frozen=True)
class Line:
    """An answered call."""

    socket: socket.socket
    endpoint: tuple[str, int]
    """Numeric address and port of the one who answered."""
    key: bytes
    """The key that both proved to know."""


def call(
    places: Sequence[tuple[str, int]],
    key: KeySource,
    introduction: Introduction,
    deadline: float,
    source: str | None = None,
) -> socket.socket:
    """Call the first of `places` that answers and knows the key.

    All places are tried, slightly apart in the order given, and again and again until the deadline, for the other side may
    not listen yet. The call is answered once the other side is in `Reception.receive`. The connection blocks, has no
    timeout and is tuned.

    Args:
        places: names or addresses, and ports; in order of preference.
        key: the key, or what finds it in the greeting of whoever answers.
        introduction: what the other side gets to know of us, a JSON object of at most 64 KiB.
        deadline: when to give up, as a `time.monotonic()`.
        source: numeric address of our own to call from; places of the other family (IPv4, IPv6) are called all the same.

    Raises:
        BootstrapError: nobody who knows the key answered in time; the text tells what happened at each place.
    """
    return dial(places, key, introduction, deadline, source).socket


def dial(
    places: Sequence[tuple[str, int]],
    key: KeySource,
    introduction: Introduction,
    deadline: float,
    source: str | None = None,
    unless: socket.socket | None = None,
) -> Line:
    """Like `call`, but also tells which place answered and with which key; and gives up once something comes on `unless`,
    be it the end of that connection."""
    start = time.monotonic()
    with contextlib.closing(_Dialling(places, key, source, unless, start)) as dialling:
        while True:
            line = dialling.next_line(deadline)
            if line is None:
                seconds = round(time.monotonic() - start, 1)
                raise BootstrapError(f"no call was answered within {seconds:g} s: {dialling.reasons()}")
            try:
                _introduce(line.socket, introduction, deadline)
            except OSError as error:
                line.socket.close()
                dialling.note(line.endpoint, _in_words(error))
            except BaseException:
                line.socket.close()
                raise
            else:
                return line


def _introduce(connection: socket.socket, introduction: Introduction, deadline: float) -> None:
    facts = introduction if isinstance(introduction, Mapping) else introduction(connection)
    message = json.dumps(dict(facts)).encode()
    if len(message) > LONGEST_INTRODUCTION:
        raise ValueError(f"an introduction of {len(message)} bytes is longer than {LONGEST_INTRODUCTION}")
    connection.settimeout(max(0.001, min(HANDSHAKE_TIMEOUT, deadline - time.monotonic())))
    connection.sendall(LENGTH.pack(len(message)) + message)
    if connection.recv(len(HEARD)) != HEARD:
        raise ConnectionResetError("it hung up")
    connection.settimeout(None)


@dataclass(eq=False)
class _Target:
    """One address of a place, and how the attempts to call it went."""

    endpoint: tuple[str, int]
    """As people know it."""
    family: socket.AddressFamily
    address: tuple[Any, ...]
    due: float
    """When to try next."""
    nap: float = _SHORTEST_NAP
    reason: str = ""
    """Why the last attempt failed; that of a stranger is kept, as it tells more than any other."""
    is_stranger: bool = False
    tries: int = 0
    connection: socket.socket | None = None
    conversation: Conversation[bytes] | None = None
    until: float = 0.0
    """When the attempt under way is given up."""


@dataclass
class _Name:
    """A place whose address is not known yet."""

    endpoint: tuple[str, int]
    due: float
    reason: str = ""


@dataclass
class _Dialling:
    """Attempts to call several places at once."""

    places: Sequence[tuple[str, int]]
    key: KeySource
    source: str | None
    unless: socket.socket | None
    start: float
    _targets: list[_Target] = field(default_factory=list)
    """The best first."""
    _names: list[_Name] = field(default_factory=list)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _held: Line | None = None
    """An answer, while better places get a last chance."""
    _rivals: list[_Target] = field(default_factory=list)
    """Those places."""
    _choice: float = float("inf")
    """When that chance is over."""

    def __post_init__(self) -> None:
        self._names = [_Name(endpoint, self.start) for endpoint in self.places]
        if self.unless is not None:
            self._selector.register(self.unless, selectors.EVENT_READ)

    def next_line(self, deadline: float) -> Line | None:
        """The next call that somebody who knows the key answers; None at the deadline, or when `unless` has something.

        An answer counts once all better places have failed again or had `_CHOICE` to answer too: the other side begins to
        listen at one place after the other, and the first to answer may be a slow network that nobody wanted.
        """
        while (now := time.monotonic()) < deadline:
            self._resolve(now)
            for target in self._targets:
                if target.connection is None and target.due <= now:
                    self._attempt(target, now)
                elif target.connection is not None and target.until <= now:
                    self._fail(target, self._silence(target))
            alarm = min(self._alarm(), deadline)
            for event, _ in self._selector.select(max(0.0, alarm - time.monotonic())):
                if event.data is None:
                    return None
                line = self._advance(event.data)
                if line is not None:
                    self._hold(line, event.data)
            if self._held is not None and (not self._rivals or time.monotonic() >= self._choice):
                line, self._held, self._choice = self._held, None, float("inf")
                return line
        line, self._held = self._held, None
        return line

    def _hold(self, line: Line, target: _Target) -> None:
        """Keep the better one of two answers, and give those that are better still a last chance."""
        if self._held is not None:
            if target not in self._rivals:
                line.socket.close()
                return
            self._held.socket.close()
            self._rivals = self._rivals[: self._rivals.index(target)]
        else:
            self._rivals = self._targets[: self._targets.index(target)]
            for rival in self._rivals:
                rival.due = 0.0
            self._choice = time.monotonic() + _CHOICE
        self._held = line

    def reasons(self) -> str:
        """What happened at each place."""
        told = {format_endpoint(*endpoint): "not tried" for endpoint in self.places}
        told.update({format_endpoint(*name.endpoint): name.reason for name in self._names if name.reason})
        for target in self._targets:
            reason = target.reason
            if target.connection is not None and not target.is_stranger:
                reason = self._silence(target)
            if reason:
                told[format_endpoint(*target.endpoint)] = reason
        return ", ".join(f"{endpoint} ({reason})" for endpoint, reason in told.items()) or "there is no place to call"

    def note(self, address: tuple[str, int], reason: str) -> None:
        """A line that we returned has failed: everybody who answered is called again."""
        soon = time.monotonic() + _SHORTEST_NAP
        for target in self._targets:
            target.due = min(target.due, soon)
            if target.address[:2] == address:
                target.reason = reason

    def close(self) -> None:
        """End all attempts."""
        for target in self._targets:
            self._hang_up(target)
        if self._held is not None:
            self._held.socket.close()
        self._selector.close()

    def _alarm(self) -> float:
        """When something is to be done though nothing happens."""
        times = [target.due if target.connection is None else target.until for target in self._targets]
        return min([self._choice, *times, *[name.due for name in self._names]])

    def _resolve(self, now: float) -> None:
        """Find the addresses of the names that have none yet."""
        for name in [name for name in self._names if name.due <= now]:
            try:
                found = socket.getaddrinfo(*name.endpoint, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                name.reason = f"the name is unknown: {error.strerror if isinstance(error, OSError) else error}"
                name.due = time.monotonic() + _STRANGER_NAP
                continue
            self._names.remove(name)
            for family, _, _, _, address in found:
                due = now + _STAGGER * len(self._targets)
                if all(target.address != address for target in self._targets):
                    self._targets.append(_Target(name.endpoint, socket.AddressFamily(family), address, due))

    def _attempt(self, target: _Target, now: float) -> None:
        """Begin to call."""
        target.tries += 1
        target.until = now + HANDSHAKE_TIMEOUT
        try:
            connection = target.connection = socket.socket(target.family, socket.SOCK_STREAM)
            connection.setblocking(False)
            tune(connection)
            if self.source is not None and (":" in self.source) == (target.family == socket.AF_INET6):
                connection.bind((self.source, 0))
            code = connection.connect_ex(target.address)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
            self._selector.register(connection, selectors.EVENT_WRITE, target)
        except OSError as error:
            self._fail(target, _in_words(error))

    def _advance(self, target: _Target) -> Line | None:
        """Go on with an attempt; the line when the other side has proved itself."""
        connection = target.connection
        assert connection is not None  # only attempts under way have events
        try:
            if target.conversation is None:
                self._begin(target, connection)
            conversation = target.conversation
            assert conversation is not None
            if not conversation.advance():
                event = selectors.EVENT_WRITE if conversation.wants_to_send else selectors.EVENT_READ
                self._selector.modify(connection, event, target)
                return None
            address = connection.getpeername()
        except OSError as error:
            self._fail(target, _in_words(error))
            return None
        except DistrunError as error:
            self._fail(target, str(error), is_stranger=True)
            return None
        self._selector.unregister(connection)
        target.connection = target.conversation = None
        target.due = float("inf")
        connection.setblocking(True)
        return Line(connection, address[:2], conversation.result)

    def _begin(self, target: _Target, connection: socket.socket) -> None:
        """The connection is there, or cannot be had."""
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        address = connection.getpeername()
        if address == connection.getsockname():  # two ends of one socket: where nobody listens TCP may meet itself
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        target.conversation = Conversation(connection, client_handshake(self.key, context(address)))

    def _fail(self, target: _Target, reason: str, is_stranger: bool = False) -> None:
        """The attempt came to nothing: nap before the next, and let a place that was not tried yet have its turn."""
        self._hang_up(target)
        if target in self._rivals:
            self._rivals.remove(target)
        if is_stranger or not target.is_stranger:
            target.reason = reason
        target.is_stranger |= is_stranger
        now = time.monotonic()
        target.due = now + (_STRANGER_NAP if is_stranger else target.nap)
        target.nap = min(_LONGEST_NAP, target.nap * 1.5)
        for other in _untried(self._targets):
            other.due = min(other.due, now)
            break

    def _hang_up(self, target: _Target) -> None:
        if target.conversation is not None:
            target.conversation.close()
        if target.connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(target.connection)
            target.connection.close()
        target.connection = target.conversation = None

    def _silence(self, target: _Target) -> str:
        return "no answer" if target.conversation is None else "it takes calls and does not say a word"


def _untried(targets: Iterable[_Target]) -> Iterator[_Target]:
    return (target for target in targets if not target.tries)


def _in_words(error: OSError) -> str:
    """Why a call failed: `connection refused`."""
    text = error.strerror or str(error) or type(error).__name__
    return text[0].lower() + text[1:]
