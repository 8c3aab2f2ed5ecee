"""The reception: takes calls over TCP and lets in only those who know the job key; and how to make such a call.

What travels, before the connection belongs to whoever called:

    host   "distrun1", length, greeting      the greeting is public and mostly empty; munge puts the sealed key into it
    both   the proofs of `authentication`
    guest  length, introduction              a JSON object: who calls and what for
    host   "!"                               so the guest knows that it was not hung up on in between, and calls again if it was

The proofs are bound to the address that the guest called and the host was called at. So a program that somebody else runs at
an address the guest tries in vain cannot pass the conversation on to the real host. It also means that no address translation
may stand between the two; the addresses that ranks tell each other are their own, so there is none.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import resource
import select
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distrun.errors import BootstrapError, DistrunError
from distrun.runtime.authentication import Conversation, Script, StrangerError, guest_side, host_side

PATIENCE = 10.0
"""Seconds that a caller, or an attempt to call, has in all."""

UNFINISHED = 1024
"""Callers that may be under way at once, or a quarter of the files this process may open, if that is less; the oldest makes
room for the next."""

KeySource = bytes | Callable[[bytes], bytes]
"""The key, or what finds it in a greeting. The greeting may come from anybody."""

Introduction = Mapping[str, Any] | Callable[[socket.socket], Mapping[str, Any]]
"""What the caller says of itself, or what makes it up once the connection, and so our address, is known."""

_MAGIC = b"distrun1"
_HEARD = b"!"
_LENGTH = struct.Struct("<I")
_LONGEST_GREETING = 1 << 14
_LONGEST_INTRODUCTION = 1 << 16
_BACKLOG = 4096
_BURST = 64  # callers accepted before those who wait get a turn
_STAGGER = 0.05  # seconds between the first attempts at one place and the next
_CHOICE = 0.25  # seconds in which a better place may still answer once another has
_SHORTEST_NAP, _LONGEST_NAP, _STRANGER_NAP = 0.01, 0.25, 0.5
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def tune(connection: socket.socket, patience: float = 15.0) -> None:
    """Set what every connection between ranks has: small messages leave at once, and a dead host is noticed in 15 s.

    Args:
        patience: seconds after which data that the other host does not take ends the connection (TCP_USER_TIMEOUT), 0 for
            the system's quarter of an hour. Beware: Linux counts a host that is alive, and merely full because its process
            does not read (it computes, it is stopped), as one that does not take the data.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(patience * 1000))


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


def show(place: tuple[str, int]) -> str:
    """`10.0.0.1:4000`, `[fd00::1]:4000`."""
    address, port = place
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


# Taking calls -------------------------------------------------------------------------------------------------------


@dataclass
class _Caller:
    """Somebody whose introduction is not complete."""

    connection: socket.socket
    conversation: Conversation[dict[str, Any]]
    address: str
    until: float
    events: int = select.EPOLLOUT
    """What we wait for: first of all we say something."""


class Reception:
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
        if len(greeting) > _LONGEST_GREETING:
            raise ValueError(f"a greeting of {len(greeting)} bytes is longer than {_LONGEST_GREETING}")
        self._key = key
        self._greeting = _MAGIC + _LENGTH.pack(len(greeting)) + greeting
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
            script = _welcome(self._greeting, self._key, _context(connection.getsockname()))
        except OSError:
            connection.close()  # it has gone already
            return
        fd = connection.fileno()
        self._callers[fd] = _Caller(connection, Conversation(connection, script), address, time.monotonic() + PATIENCE)
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


def _welcome(greeting: bytes, key: bytes, context: bytes) -> Script[dict[str, Any]]:
    """The host's side of a call."""
    yield greeting
    yield from host_side(key, context)
    (size,) = _LENGTH.unpack((yield _LENGTH.size))
    if size > _LONGEST_INTRODUCTION:
        raise BootstrapError(f"an introduction of {size} bytes is longer than {_LONGEST_INTRODUCTION}")
    try:
        introduction = json.loads((yield size))
    except (ValueError, RecursionError):
        introduction = None
    if not isinstance(introduction, dict):
        raise BootstrapError("an introduction is not a JSON object")
    yield _HEARD
    return introduction


def _ask(key: KeySource, context: bytes) -> Script[bytes]:
    """The guest's side of a call, up to the introduction; the key that both know."""
    head = yield len(_MAGIC) + _LENGTH.size
    (size,) = _LENGTH.unpack(head[len(_MAGIC) :])
    if not head.startswith(_MAGIC) or size > _LONGEST_GREETING:
        raise StrangerError("another program answers there")
    greeting = yield size
    secret = key if isinstance(key, bytes) else key(greeting)
    yield from guest_side(secret, context)
    return secret


def _context(address: tuple[Any, ...]) -> bytes:
    """What the proofs are bound to: a call to this address of the host. Both sides write it alike."""
    host = ipaddress.ip_address(address[0].partition("%")[0])
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    return f"call {host} {address[1]}".encode()


# Making calls -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """An answered call."""

    socket: socket.socket
    place: tuple[str, int]
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
                seconds = max(0.0, time.monotonic() - start)
                raise BootstrapError(f"no call was answered within {seconds:.3g} s: {dialling.reasons()}")
            try:
                _introduce(line.socket, introduction, deadline)
            except OSError as error:
                line.socket.close()
                dialling.note(line.place, _in_words(error))
            except BaseException:
                line.socket.close()
                raise
            else:
                return line


def _introduce(connection: socket.socket, introduction: Introduction, deadline: float) -> None:
    facts = introduction if isinstance(introduction, Mapping) else introduction(connection)
    message = json.dumps(dict(facts)).encode()
    if len(message) > _LONGEST_INTRODUCTION:
        raise ValueError(f"an introduction of {len(message)} bytes is longer than {_LONGEST_INTRODUCTION}")
    connection.settimeout(max(0.001, min(PATIENCE, deadline - time.monotonic())))
    connection.sendall(_LENGTH.pack(len(message)) + message)
    if connection.recv(len(_HEARD)) != _HEARD:
        raise ConnectionResetError("it hung up")
    connection.settimeout(None)


@dataclass(eq=False)
class _Target:
    """One address of a place, and how the attempts to call it went."""

    place: tuple[str, int]
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

    place: tuple[str, int]
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
        self._names = [_Name(place, self.start) for place in self.places]
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
        told = {show(name.place): name.reason or "not tried" for name in self._names}
        for target in self._targets:
            reason = target.reason
            if target.connection is not None and not target.is_stranger:
                reason = self._silence(target)
            told[show(target.place)] = reason or "not tried"
        return ", ".join(f"{place} ({reason})" for place, reason in told.items()) or "there is no place to call"

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
                found = socket.getaddrinfo(*name.place, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                name.reason = f"the name is unknown: {error.strerror if isinstance(error, OSError) else error}"
                name.due = time.monotonic() + _STRANGER_NAP
                continue
            self._names.remove(name)
            for family, _, _, _, address in found:
                due = now + _STAGGER * len(self._targets)
                if all(target.address != address for target in self._targets):
                    self._targets.append(_Target(name.place, socket.AddressFamily(family), address, due))

    def _attempt(self, target: _Target, now: float) -> None:
        """Begin to call."""
        target.tries += 1
        target.until = now + PATIENCE
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
        target.conversation = Conversation(connection, _ask(self.key, _context(address)))

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
