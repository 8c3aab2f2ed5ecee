"""The rendezvous: how the ranks of all hosts find each other, at rank 0.

Rank 0 takes calls at a place that everybody knows from the environment. Each other rank calls it twice: with the *control*
connection it introduces itself, and says where it takes calls itself; the *alarm* is for later. When all have come, rank 0
sends the table of everybody over the control connections, or a sentence why the job cannot start.

    rank 0 to the others    length, {"members": [[rank, host, hostname, pid, address, port], ...], "settings": {...}}
                            length, {"error": "..."}

The connections with ranks on rank 0's own host are closed then: they have shared memory for all that follows.
"""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass, replace
from typing import Any

from distrun.errors import BootstrapError, UsageError
from distrun.host.endpoints import LAST_PORT, format_endpoint, parse_endpoint
from distrun.host.interfaces import is_loopback, is_numeric, matching, own_interfaces
from distrun.runtime.rendezvous.dialer import Line, dial
from distrun.runtime.rendezvous.listener import Listener, listen
from distrun.runtime.topology import list_ranks

CONTROL, ALARM = "control", "alarm"
"""The purposes of the two connections."""

_LENGTH = struct.Struct("<I")
_LONGEST_TABLE = 1 << 26
_FILES_PER_RANK = 8  # rank 0 keeps two; a reception lets a quarter of all be callers under way
_LAST_WORD = 2.0  # seconds within which a rank takes the sentence that the job cannot start


@dataclass(frozen=True)
class RendezvousEndpoint:
    """Where rank 0 takes the calls of the others, and how both sides come by the key."""

    addresses: tuple[tuple[str, int], ...]
    """Names or addresses, and ports, in order of preference. Rank 0 listens at all that are its own."""
    key: bytes | None = None
    """The job key; None where there are hooks."""
    greeting: Callable[[], tuple[bytes, bytes]] | None = None
    """On rank 0, where nobody gave the job a key: makes the greeting that tells it to those who may know, and the key."""
    opener: Callable[[bytes], bytes] | None = None
    """On the others: finds the key in a greeting, which may come from anybody; raises a DistrunError when it cannot."""


def parse(text: str) -> tuple[tuple[str, int], ...]:
    """Return the addresses of `10.0.0.1:40123,[fd00::1]:40123`; the name of a host may stand for an address.

    Raises:
        UsageError: it is something else.
    """
    return tuple(_parse_one(part.strip(), text) for part in text.split(","))


def _parse_one(part: str, text: str) -> tuple[str, int]:
    try:
        return parse_endpoint(part)
    except ValueError:
        raise UsageError(
            f"the rendezvous {text!r} has {part!r} in it, which is not an address and a port from 1 to {LAST_PORT} such as "
            "10.0.0.1:40123 or [fd00::1]:40123: start the script with `distrun`, which chooses them"
        ) from None


@dataclass(frozen=True)
class Member:
    """One rank as the others know it."""

    rank: int
    host: str
    """Identifies the host: equal for ranks that share one."""
    hostname: str
    """The host's name for people."""
    pid: int
    address: str
    """Where it takes calls for data links, numeric. Rank 0's is the one at which *this* rank reached it."""
    port: int

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on host {self.hostname})"


@dataclass
class Rendezvous:
    """What a rank has once all have met. All connections block, have no timeout and are tuned (see `calls.tune`)."""

    members: tuple[Member, ...]
    """By rank."""
    agreed: dict[str, int]
    """Rank 0's word for all."""
    control: dict[int, socket.socket]
    """On rank 0: one connection per rank on another host. On another host: the one to rank 0. Elsewhere: none."""
    alarms: dict[int, socket.socket]
    """A second connection with the same ranks."""
    listener: Listener
    """Where this rank takes calls for data links; still open."""
    key: bytes
    """The job key."""

    def close(self) -> None:
        """Close all connections, and stop taking calls."""
        for connection in [*self.control.values(), *self.alarms.values()]:
            connection.close()
        self.listener.close()


def rendezvous_across_hosts(
    rank: int,
    size: int,
    host: str,
    hostname: str,
    endpoint: RendezvousEndpoint,
    agreed: dict[str, int],
    timeout: float,
    network: str | None = None,
) -> Rendezvous:
    """Meet the ranks of all hosts.

    Args:
        rank: ours.
        size: how many ranks there are.
        host: what identifies our host.
        hostname: what people call it.
        place: where rank 0 is.
        agreed: numbers of which rank 0's hold for everybody.
        timeout: seconds to wait for the slowest rank.
        network: interfaces and subnets that may be used (see `host.interfaces.matching`); None or empty: all.

    Raises:
        BootstrapError: somebody did not come in time or was not who they should be. No descriptor is left open then.
        UsageError: `network` allows no interface of this machine.
    """
    allowed = None
    if network:
        allowed = [interface.address for interface in matching(own_interfaces(), network, f"host {hostname!r}")]
    mine = Member(rank, host, hostname, os.getpid(), "", 0)
    if rank == 0:
        return _Host(size, mine, endpoint, timeout).rendezvous_across_hosts(agreed, allowed)
    return _Client(size, mine, endpoint, timeout).rendezvous_across_hosts(allowed)


# Rank 0 -------------------------------------------------------------------------------------------------------------


class _Host:
    """Rank 0, at whose place everybody meets."""

    def __init__(self, size: int, mine: Member, endpoint: RendezvousEndpoint, timeout: float) -> None:
        self._size = size
        self._mine = mine
        self._endpoint = endpoint
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._members: dict[int, Member] = {}
        self._connections: dict[str, dict[int, socket.socket]] = {CONTROL: {}, ALARM: {}}
        self._told: set[int] = set()  # who was sent the table, or a part of it

    def rendezvous_across_hosts(self, agreed: dict[str, int], allowed: list[str] | None) -> Rendezvous:
        """Wait for everybody, then tell them."""
        _allow_files(_FILES_PER_RANK * self._size)
        with ExitStack() as undo:
            undo.callback(self._hang_up)
            sockets = _listen_at(self._endpoint.addresses, allowed, self._mine.hostname)
            for opened in sockets:
                undo.callback(opened.close)
            greeting, key = self._credentials()
            listener = Listener(sockets, key, greeting)
            undo.callback(listener.close)
            address, port = listener.places[0]
            self._members[0] = replace(self._mine, address=address, port=port)
            try:
                self._await_all(listener)
                self._tell_all(agreed)
            except BootstrapError as error:
                self._break_off(str(error))
                raise
            members = tuple(self._members[rank] for rank in range(self._size))
            self._let_go_of_neighbours()
            undo.pop_all()
        return Rendezvous(members, dict(agreed), self._connections[CONTROL], self._connections[ALARM], listener, key)

    def _credentials(self) -> tuple[bytes, bytes]:
        if self._endpoint.greeting is not None:
            return self._endpoint.greeting()
        return b"", _known_key(self._endpoint)

    def _await_all(self, listener: Listener) -> None:
        with select.epoll() as epoll:
            epoll.register(listener, select.EPOLLIN)
            while not self._all_are_here():
                left = self._deadline - time.monotonic()
                if left <= 0:
                    raise BootstrapError(self._complaint(listener))
                for fd, _ in epoll.poll(min(left, 1.0)):  # a second: callers that take too long have to be dropped
                    if fd != listener.fileno():
                        raise BootstrapError(self._loss(fd))
                while (call := listener.receive(0)) is not None:
                    purpose, rank = self._register(*call)
                    # Nobody says a word on these now: what comes is the end of the connection.
                    epoll.register(self._connections[purpose][rank], select.EPOLLIN)

    def _all_are_here(self) -> bool:
        return all(len(connections) == self._size - 1 for connections in self._connections.values())

    def _register(self, connection: socket.socket, introduction: dict[str, Any]) -> tuple[str, int]:
        """Take in a rank that has called."""
        with ExitStack() as undo:
            undo.callback(connection.close)
            try:
                purpose, size = str(introduction["purpose"]), int(introduction["size"])
                member = Member(*introduction["member"])
                rank = int(member.rank)
                connections = self._connections[purpose]
            except (KeyError, TypeError, ValueError):
                raise BootstrapError(
                    f"somebody who knows the job key called rank 0 and said {str(introduction)[:200]!r}, which it does not "
                    "understand: use the same version of distrun everywhere"
                ) from None
            sentence = self._objection(member, size, connections)
            if sentence:
                with suppress(OSError):
                    _send(connection, {"error": sentence}, _LAST_WORD)
                raise BootstrapError(sentence)
            undo.pop_all()
        connections[rank] = connection
        if purpose == CONTROL:
            self._members[rank] = member
        return purpose, rank

    def _objection(self, member: Member, size: int, connections: dict[int, socket.socket]) -> str:
        """Why a rank cannot be taken in; empty when it can."""
        if size != self._size:
            return (
                f"{member} believes in {size} ranks and {self._mine} in {self._size}: "
                "give all of them the same number (WORLD_SIZE, -np)"
            )
        if not 0 < member.rank < self._size:
            return f"{member} called rank 0 of {self._size}: ranks from 1 to {self._size - 1} are expected"
        if member.rank in connections:
            first = self._members.get(member.rank, member)
            return (
                f"rank {member.rank} is there twice: process {first.pid} on host {first.hostname} and process {member.pid} on "
                f"host {member.hostname}; give each its own number, and see whether an earlier run is still there"
            )
        return ""

    def _loss(self, fd: int) -> str:
        for connections in self._connections.values():
            for rank, connection in connections.items():
                if connection.fileno() == fd:
                    who = self._members.get(rank, f"rank {rank}")
                    return f"{who} came and ended again before all ranks had called init(): see what it says"
        raise AssertionError(f"nobody has descriptor {fd}")

    def _complaint(self, listener: Listener) -> str:
        control, alarms = self._connections[CONTROL], self._connections[ALARM]
        missing = [rank for rank in range(1, self._size) if rank not in control or rank not in alarms]
        taken = ", ".join(format_endpoint(*endpoint) for endpoint in listener.places)
        strangers = listener.strangers()
        return (
            f"{list_ranks(missing)} of {self._size} did not call init() within {self._timeout:g} s at {taken}"
            f"{f' ({strangers})' if strangers else ''}: see whether they are still starting (raise --start-timeout), "
            "have ended, or cannot reach these addresses (a firewall; choose others with --network)"
        )

    def _tell_all(self, agreed: dict[str, int]) -> None:
        table = [astuple(self._members[rank]) for rank in range(self._size)]
        message = _pack({"members": table, "agreed": agreed})
        for rank, connection in self._connections[CONTROL].items():
            try:
                self._told.add(rank)
                connection.settimeout(max(1.0, self._deadline - time.monotonic()))
                connection.sendall(message)
                connection.settimeout(None)
            except OSError as error:
                raise BootstrapError(f"{self._members[rank]} cannot be told who is there: {error}") from None

    def _break_off(self, sentence: str) -> None:
        """Tell those who have come why the job cannot start; whoever believes that it does learns it from the silence."""
        for rank, connection in self._connections[CONTROL].items():
            if rank not in self._told:
                with suppress(OSError):
                    _send(connection, {"error": sentence}, _LAST_WORD)

    def _let_go_of_neighbours(self) -> None:
        for connections in self._connections.values():
            for rank in [rank for rank in connections if self._members[rank].host == self._mine.host]:
                connections.pop(rank).close()

    def _hang_up(self) -> None:
        for connections in self._connections.values():
            for connection in connections.values():
                connection.close()


def _listen_at(addresses: Iterable[tuple[str, int]], allowed: list[str] | None, hostname: str) -> list[socket.socket]:
    """Listen at those addresses of the place that are ours and allowed.

    Raises:
        BootstrapError: there is none.
    """
    listeners: dict[tuple[str, int], socket.socket] = {}
    reasons: dict[str, str] = {}
    for name, port in addresses:
        try:
            found = _numeric(name)
        except (OSError, UnicodeError) as error:
            reasons[format_endpoint(name, port)] = getattr(error, "strerror", None) or str(error)
            continue
        for address in found:
            if allowed is not None and address not in allowed:
                reasons[format_endpoint(address, port)] = "not in the network that was chosen"
            elif (address, port) not in listeners:
                try:
                    listeners[address, port] = listen(address, port, shared=True)
                except OSError as error:
                    reasons[format_endpoint(address, port)] = error.strerror or str(error)
    if not listeners:
        try:
            there = ", ".join(interface.address for interface in own_interfaces())
        except OSError as error:
            there = str(error)
        raise BootstrapError(
            f"rank 0 on host {hostname} can take calls at none of "
            f"{', '.join(f'{endpoint} ({reason.lower()})' for endpoint, reason in reasons.items())}: "
            f"the rendezvous has to be an address of rank 0's own host, which has {there}, and a port that is free"
        )
    return list(listeners.values())


def _numeric(name: str) -> list[str]:
    """The addresses that a name means on rank 0's own host.

    Debian's /etc/hosts gives a host's own name as 127.0.1.1, where nobody else could call; all addresses are meant then.
    """
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    is_name = name != "localhost" and not is_numeric(name)
    if is_name and all(map(is_loopback, found)):
        return list(dict.fromkeys([interface.address for interface in own_interfaces()] + found))
    return found


def _allow_files(count: int) -> None:
    """Raise this process's limit of open files to `count` if it is lower, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# The other ranks ----------------------------------------------------------------------------------------------------


class _Client:
    """Another rank, which calls rank 0."""

    def __init__(self, size: int, mine: Member, endpoint: RendezvousEndpoint, timeout: float) -> None:
        self._size = size
        self._mine = mine
        self._endpoint = endpoint
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout

    def rendezvous_across_hosts(self, allowed: list[str] | None) -> Rendezvous:
        """Call rank 0 and wait for the table."""
        with ExitStack() as undo:
            listeners: list[socket.socket] = []

            def introduction(connection: socket.socket) -> dict[str, Any]:
                """Who we are, and where we take calls: that is known once we have a connection."""
                if listeners:  # an earlier connection broke
                    listeners.pop().close()
                address = _choose(connection.getsockname()[0], allowed)
                everywhere = "::" if ":" in address else "0.0.0.0"
                listener = undo.enter_context(listen(everywhere if is_loopback(address) else address))
                listeners.append(listener)
                port = listener.getsockname()[1]
                return self._facts(CONTROL, replace(self._mine, address=address, port=port))

            line = self._call(introduction)
            control = undo.enter_context(line.socket)
            alarm = self._call_again(line)
            if alarm is not None:
                undo.enter_context(alarm)
            members, settings = self._hear(line)
            assert alarm is not None  # rank 0 does not tell who is there before it has all alarms
            control_by_rank, alarm_by_rank = {0: control}, {0: alarm}
            if members[0].host == self._mine.host:
                for connections in (control_by_rank, alarm_by_rank):
                    connections.pop(0).close()
            listener = Listener(listeners, line.key)
            undo.pop_all()
        return Rendezvous(members, settings, control_by_rank, alarm_by_rank, listener, line.key)

    def _facts(self, purpose: str, member: Member) -> dict[str, Any]:
        return {"purpose": purpose, "size": self._size, "member": astuple(member)}

    def _call(self, introduction: Callable[[socket.socket], dict[str, Any]]) -> Line:
        key = self._endpoint.opener or _known_key(self._endpoint)
        try:
            return dial(self._endpoint.addresses, key, introduction, self._deadline)
        except BootstrapError as error:
            raise BootstrapError(
                f"rank {self._mine.rank} did not find rank 0 within {self._timeout:g} s: {error}; see whether rank 0 is still "
                "starting (raise --start-timeout), has ended, or is to be reached at another address (--network); if it does "
                "not know the job key, see that all ranks have the same DISTRUN_KEY"
            ) from None

    def _call_again(self, line: Line) -> socket.socket | None:
        """The alarm; None when rank 0 has something to say instead, which can only be why it gave up."""
        try:
            introduction = self._facts(ALARM, self._mine)
            return dial([line.endpoint], line.key, introduction, self._deadline, unless=line.socket).socket
        except BootstrapError as error:
            if _has_something(line.socket):
                return None
            raise BootstrapError(f"rank {self._mine.rank} reached rank 0 once and not again: {error}") from None

    def _hear(self, line: Line) -> tuple[tuple[Member, ...], dict[str, int]]:
        """Rank 0's word: everybody, and the settings."""
        endpoint, rank = format_endpoint(*line.endpoint), self._mine.rank
        try:
            # Rank 0 has waited for longer than we have known it, and can tell who is missing: it should give up first.
            message = _receive(line.socket, time.monotonic() + self._timeout + _LAST_WORD)
        except TimeoutError:
            raise BootstrapError(
                f"rank {rank} met rank 0 at {endpoint}, but some rank of another host did not come within {self._timeout:g} s"
            ) from None
        except OSError as error:
            raise BootstrapError(
                f"rank 0 at {endpoint} ended while the ranks were gathering ({error}): see what it says"
            ) from None
        if "error" in message:
            raise BootstrapError(str(message["error"]))
        members = [Member(*row) for row in message["members"]]
        if [member.rank for member in members] != list(range(self._size)):
            raise BootstrapError(f"rank 0 told rank {rank} of {len(members)} ranks instead of {self._size}")
        # At this address rank 0 can be reached from here; of its others we know nothing. Its neighbours may have called it over
        # loopback, and then take calls at all addresses.
        members[0] = replace(members[0], address=line.endpoint[0], port=line.endpoint[1])
        members = [
            replace(member, address=line.endpoint[0])
            if member.host == members[0].host and is_loopback(member.address)
            else member
            for member in members
        ]
        return tuple(members), {str(name): int(value) for name, value in message["agreed"].items()}


def _choose(address: str, allowed: list[str] | None) -> str:
    """Where to take calls: the address at which we call rank 0, or one that is allowed, of the same family if possible."""
    if allowed is None or address in allowed:
        return address
    return min(allowed, key=lambda other: (":" in other) != (":" in address))


# Both ---------------------------------------------------------------------------------------------------------------


def _known_key(endpoint: RendezvousEndpoint) -> bytes:
    if endpoint.key is None:
        raise BootstrapError(
            "the ranks have no key by which they could know each other: start the script with `distrun`"
        )
    return endpoint.key


def _pack(message: dict[str, Any]) -> bytes:
    text = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(text)) + text


def _send(connection: socket.socket, message: dict[str, Any], timeout: float) -> None:
    connection.settimeout(timeout)
    connection.sendall(_pack(message))


def _has_something(connection: socket.socket) -> bool:
    poll = select.poll()  # select() cannot take descriptors above 1023
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _receive(connection: socket.socket, deadline: float) -> dict[str, Any]:
    (size,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size, deadline))
    if size > _LONGEST_TABLE:
        raise ConnectionError(f"a message of {size} bytes")
    message = json.loads(_receive_exactly(connection, size, deadline))
    connection.settimeout(None)
    return dict(message)


def _receive_exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionError("it closed the connection")
        data += part
    return bytes(data)
