"""The server of the rendezvous: rank 0, which all other ranks connect with."""

from __future__ import annotations

import resource
import select
import socket
import time
from collections.abc import Collection, Iterable
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from distrun.contract.elastic.interruption import check, stop_descriptors
from distrun.errors import BootstrapError
from distrun.host.connections.listener import Listener, listen
from distrun.host.connections.tcp_options import set_tcp_options
from distrun.host.endpoints import format_endpoint
from distrun.host.interfaces import addresses_on_own_host, own_interfaces
from distrun.host.ranks import list_ranks
from distrun.runtime.transport.rendezvous.protocol import (
    ALARM,
    CONTROL,
    ERROR_TIMEOUT,
    Member,
    MessageReader,
    Participant,
    Rendezvous,
    pack_message,
    send_message,
)

# Rank 0 needs two descriptors per rank, and its listener lets clients that are still in the handshake use a quarter of
# the limit.
_FILES_PER_RANK = 8


@dataclass
class Server(Participant):
    """Connects rank 0 with all other ranks."""

    _members: dict[int, Member] = field(default_factory=dict)
    _connections: dict[str, dict[int, socket.socket]] = field(default_factory=lambda: {CONTROL: {}, ALARM: {}})
    _by_fd: dict[int, tuple[str, int]] = field(default_factory=dict)
    """The purpose and the rank of each connection."""
    _readers: dict[int, MessageReader] = field(default_factory=dict)
    """For the control connections, by rank."""
    _told: set[int] = field(default_factory=set)
    """The ranks that were sent the table, or a part of it."""

    def run(self, agreed: dict[str, int], allowed: list[str] | None) -> Rendezvous:
        """Wait for all ranks, then send them the table of members.

        Args:
            agreed: numbers by name that hold for all ranks.
            allowed: the addresses that may be used. None for all.
        """
        _allow_files(_FILES_PER_RANK * self.size)
        with ExitStack() as undo:
            undo.callback(self._close_connections)
            sockets = _listen_at(self.endpoint.addresses, allowed, self.mine.hostname)
            for opened in sockets:
                undo.callback(opened.close)
            greet = self.endpoint.greeting
            greeting, key = (b"", self.endpoint.known_key) if greet is None else greet()
            listener = Listener(sockets, key, greeting, self.endpoint.is_encrypted)
            undo.callback(listener.close)
            address, port = listener.endpoints[0]
            self._members[0] = replace(self.mine, address=address, port=port)
            try:
                self._await_ranks(listener)
                self._send_table(agreed)
            except BootstrapError as error:
                self._tell_failure(str(error))
                raise
            members = tuple(self._members[rank] for rank in range(self.size))
            self._close_local_connections()
            undo.pop_all()
        control, alarms = self._connections[CONTROL], self._connections[ALARM]
        is_encrypted, is_relayed = self.endpoint.is_encrypted, self._is_relayed()
        return Rendezvous(members, dict(agreed), control, alarms, listener, key, is_encrypted, is_relayed)

    def _await_ranks(self, listener: Listener) -> None:
        with select.epoll() as epoll:
            for fd in (listener.fileno(), *stop_descriptors(self.interruption)):
                epoll.register(fd, select.EPOLLIN)
            while not self._is_complete():
                left = self.deadline - time.monotonic()
                if left <= 0:
                    raise BootstrapError(self._timeout_message(listener))
                # At most a second, so that the listener drops clients whose handshake takes too long.
                ready = epoll.poll(min(left, 1.0))
                check(self.interruption)
                for fd, _ in ready:
                    if fd != listener.fileno():
                        self._hear(*self._by_fd[fd])
                while (client := listener.receive(0)) is not None:
                    self._register(*client)
                    epoll.register(client[0], select.EPOLLIN)

    def _is_complete(self) -> bool:
        control, alarms = self._connections[CONTROL], self._connections[ALARM]
        return len(self._members) == self.size and control.keys() == alarms.keys()

    def _register(self, connection: socket.socket, introduction: dict[str, Any]) -> None:
        """Register the rank that has connected and introduced itself."""
        with ExitStack() as undo:
            undo.callback(connection.close)
            purpose, size, member = _understood(introduction)
            sentence = self._objection(member, size, self._members if purpose == CONTROL else self._connections[ALARM])
            if sentence:
                with suppress(OSError):
                    send_message(connection, {"error": sentence}, ERROR_TIMEOUT)
                raise BootstrapError(sentence)
            undo.pop_all()
        set_tcp_options(connection, self.keepalive)  # it may have to wait for the slowest rank for long
        self._connections[purpose][member.rank] = connection
        self._by_fd[connection.fileno()] = purpose, member.rank
        if purpose == CONTROL:
            self._members[member.rank] = member
            self._readers[member.rank] = MessageReader(connection)

    def _hear(self, purpose: str, rank: int) -> None:
        """Handle a readable connection: messages of a relay, or the end of the connection."""
        messages = None
        if purpose == CONTROL:
            with suppress(OSError):
                messages = self._readers[rank].receive()
        if messages is None:
            raise BootstrapError(self._lost_message(rank))
        for message in messages:
            for introduction in message["came"]:
                _, size, member = _understood({"purpose": CONTROL, **introduction})
                sentence = self._objection(member, size, self._members)
                if sentence:
                    raise BootstrapError(sentence)
                self._members[member.rank] = member
            for ended in message["ended"]:
                raise BootstrapError(self._lost_message(ended))

    def _objection(self, member: Member, size: int, known: Collection[int]) -> str:
        """Return why `member` cannot be registered beside the `known` ranks, or "" if it can."""
        if size != self.size:
            return (
                f"{member} was told of {size} ranks and {self.mine} of {self.size}: "
                "give all of them the same number (WORLD_SIZE, -np)"
            )
        if not 0 < member.rank < self.size:
            return f"{member} connected with rank 0 of {self.size}: ranks from 1 to {self.size - 1} are expected"
        if member.rank in known:
            first = self._members.get(member.rank, member)
            return (
                f"rank {member.rank} is there twice: process {first.pid} on host {first.hostname} and process "
                f"{member.pid} on host {member.hostname}; give each its own number, and see whether an earlier run "
                "is still there"
            )
        return ""

    def _lost_message(self, rank: int) -> str:
        who = self._members.get(rank, f"rank {rank}")
        return f"{who} came and ended again before all ranks had called init(): see what it says"

    def _timeout_message(self, listener: Listener) -> str:
        control, alarms = self._connections[CONTROL], self._connections[ALARM]
        missing = [
            rank
            for rank in range(1, self.size)
            if rank not in self._members or (rank in control and rank not in alarms)
        ]
        listening = ", ".join(format_endpoint(*endpoint) for endpoint in listener.endpoints)
        refused = listener.describe_refused()
        return (
            f"{list_ranks(missing)} of {self.size} did not call init() within {self.timeout:g} s at {listening}"
            f"{f' ({refused})' if refused else ''}: see whether they are still starting (raise --start-timeout), "
            "have ended, or cannot reach these addresses (a firewall; choose others with --network)"
        )

    def _send_table(self, agreed: dict[str, int]) -> None:
        table = [astuple(self._members[rank]) for rank in range(self.size)]
        message = pack_message({"members": table, "agreed": agreed, "is_relayed": self._is_relayed()})
        for rank, connection in self._connections[CONTROL].items():
            try:
                self._told.add(rank)
                connection.settimeout(max(1.0, self.deadline - time.monotonic()))
                connection.sendall(message)
                connection.settimeout(None)
            except OSError as error:
                raise BootstrapError(f"{self._members[rank]} cannot be told who is there: {error}") from None

    def _tell_failure(self, sentence: str) -> None:
        """Tell the ranks that have connected why the job cannot start.

        A rank that was already sent the table expects the job to start. It notices the end of its connection.
        """
        for rank, connection in self._connections[CONTROL].items():
            if rank not in self._told:
                with suppress(OSError):
                    send_message(connection, {"error": sentence}, ERROR_TIMEOUT)

    def _is_relayed(self) -> bool:
        """Return whether there are ranks on other hosts that have no connection with rank 0."""
        here, control = self.mine.host, self._connections[CONTROL]
        return any(member.host != here and rank not in control for rank, member in self._members.items())

    def _close_local_connections(self) -> None:
        """Close the connections with ranks on this host, which use shared memory after the rendezvous."""
        for connections in self._connections.values():
            for rank in [rank for rank in connections if self._members[rank].host == self.mine.host]:
                connections.pop(rank).close()

    def _close_connections(self) -> None:
        for connections in self._connections.values():
            for connection in connections.values():
                connection.close()


def _understood(introduction: dict[str, Any]) -> tuple[str, int, Member]:
    """Return the purpose of a connection, the number of ranks that the other side expects, and the other side."""
    try:
        purpose, size = str(introduction["purpose"]), int(introduction["size"])
        member = Member(*introduction["member"])
        if purpose not in (CONTROL, ALARM):
            raise ValueError(purpose)
        return purpose, size, replace(member, rank=int(member.rank))
    except (KeyError, TypeError, ValueError):
        raise BootstrapError(
            f"a process that knows the job key connected with rank 0 and said {str(introduction)[:200]!r}, "
            "which rank 0 does not understand: use the same version of distrun everywhere"
        ) from None


def _listen_at(addresses: Iterable[tuple[str, int]], allowed: list[str] | None, hostname: str) -> list[socket.socket]:
    """Listen at those addresses of the rendezvous that belong to this host and are allowed."""
    listeners: dict[tuple[str, int], socket.socket] = {}
    reasons: dict[str, str] = {}
    for name, port in addresses:
        try:
            found = addresses_on_own_host(name)
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
            f"rank 0 on host {hostname} can listen at none of "
            f"{', '.join(f'{endpoint} ({reason.lower()})' for endpoint, reason in reasons.items())}: "
            f"the rendezvous has to be an address of rank 0's own host, which has {there}, and a port that is free"
        )
    return list(listeners.values())


def _allow_files(count: int) -> None:
    """Raise this process's limit of open files to `count` if it is lower, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
