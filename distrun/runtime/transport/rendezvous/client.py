"""The client of the rendezvous: a rank other than rank 0, which connects with it, perhaps also for others of its
host."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import astuple, dataclass, replace
from typing import Any

from distrun.contract.elastic.interruption import await_readable, check, stop_descriptors
from distrun.errors import BootstrapError
from distrun.host.connections.dialer import dial
from distrun.host.connections.listener import Listener, listen_at
from distrun.host.connections.target import PeerConnection
from distrun.host.connections.tcp_options import set_tcp_options
from distrun.host.endpoints import format_endpoint
from distrun.host.interfaces import Interface, is_loopback
from distrun.runtime.transport.rendezvous.local_connections import LocalListener
from distrun.runtime.transport.rendezvous.protocol import (
    ALARM,
    CONTROL,
    ERROR_TIMEOUT,
    Member,
    Participant,
    Rendezvous,
    receive_packed,
    unpack_message,
)
from distrun.runtime.transport.rendezvous.relay import Relay

Further = Callable[[str], Sequence[Interface]]
"""Returns the interfaces to listen at in addition to the given address."""


def nothing_further(address: str) -> Sequence[Interface]:
    """Return no interfaces: listen at no other address."""
    return ()


class Client(Participant):
    """Connects a rank other than rank 0 with rank 0."""

    def run(
        self, allowed: list[str] | None, further: Further = nothing_further, host_listener: LocalListener | None = None
    ) -> Rendezvous:
        """Connect with rank 0 and wait for the table.

        Args:
            allowed: the addresses that may be used. None for all.
            further: returns further interfaces to listen at.
            host_listener: for other ranks of this host, if this rank is their relay.
        """
        with ExitStack() as undo:
            listeners: list[socket.socket] = []

            def introduction(connection: socket.socket) -> dict[str, Any]:
                """Return this rank's introduction. Its endpoint depends on the local address of `connection`."""
                while listeners:  # an earlier connection broke
                    listeners.pop().close()
                sockets, told = _listening(self.mine, connection, allowed, further)
                listeners.extend(sockets)
                for listener in listeners:
                    undo.enter_context(listener)
                return self._introduction(CONTROL, told)

            server = self._connect(introduction)
            control = undo.enter_context(server.socket)
            set_tcp_options(control, self.keepalive)
            alarm = self._connect_alarm(server)
            if alarm is not None:
                undo.enter_context(alarm)
                set_tcp_options(alarm, self.keepalive)
            if host_listener is None:
                table = self._receive_table(server)
            else:
                with Relay(
                    host_listener,
                    server,
                    lambda member: _listening(member, server.socket, allowed, further),
                    tells_key=self.endpoint.key is None,
                    interruption=self.interruption,
                ) as relay:
                    table = self._receive_table(server, relay)
            assert alarm is not None  # rank 0 does not send the table before it has all alarm connections
            controls, alarms, is_encrypted = {0: control}, {0: alarm}, self.endpoint.is_encrypted
            if table.members[0].host == self.mine.host:
                for connections in (controls, alarms):
                    connections.pop(0).close()
            listener = Listener(listeners, server.key, is_encrypted=is_encrypted)
            undo.pop_all()
        return Rendezvous(
            table.members, table.agreed, controls, alarms, listener, server.key, is_encrypted, table.is_relayed
        )

    def _introduction(self, purpose: str, member: Member) -> dict[str, Any]:
        return {"purpose": purpose, "size": self.size, "member": astuple(member)}

    def _connect(self, introduction: Callable[[socket.socket], dict[str, Any]]) -> PeerConnection:
        key = self.endpoint.opener or self.endpoint.known_key
        try:
            return dial(
                self.endpoint.addresses,
                key,
                introduction,
                self.deadline,
                stop_on=stop_descriptors(self.interruption),
                is_encrypted=self.endpoint.is_encrypted,
            )
        except BootstrapError as error:
            check(self.interruption)
            raise BootstrapError(
                f"rank {self.mine.rank} did not find rank 0 within {self.timeout:g} s: {error}; see whether rank 0 "
                "is still starting (raise --start-timeout), has ended, or is to be reached at another address "
                "(--network); if it does not know the job key, see that all ranks have the same DISTRUN_KEY"
            ) from None

    def _connect_alarm(self, server: PeerConnection) -> socket.socket | None:
        """Return the alarm connection, or None if rank 0 has sent a message before, which can only be its failure."""
        try:
            introduction = self._introduction(ALARM, self.mine)
            stop_on = (server.socket.fileno(), *stop_descriptors(self.interruption))
            is_encrypted = self.endpoint.is_encrypted
            return dial(
                [server.endpoint], server.key, introduction, self.deadline, stop_on=stop_on, is_encrypted=is_encrypted
            ).socket
        except BootstrapError as error:
            check(self.interruption)
            with suppress(TimeoutError):
                await_readable(server.socket, 0.0, None)
                return None
            raise BootstrapError(f"rank {self.mine.rank} reached rank 0 once and not again: {error}") from None

    def _receive_table(self, server: PeerConnection, relay: Relay | None = None) -> Table:
        """Return rank 0's table, and pass it on by `relay`."""
        endpoint, rank = format_endpoint(*server.endpoint), self.mine.rank
        # Rank 0 began to wait before this rank found it, and can report which rank is missing. So it should time out
        # first.
        until = time.monotonic() + self.timeout + ERROR_TIMEOUT
        with nullcontext() if relay is None else relay.telling_failures():
            if relay is not None:
                relay.introduce(until)
            try:
                packed = receive_packed(server.socket, until, self.interruption)
            except TimeoutError:
                raise BootstrapError(
                    f"rank {rank} met rank 0 at {endpoint}, but some rank of another host did not come within "
                    f"{self.timeout:g} s"
                ) from None
            except OSError as error:
                raise BootstrapError(
                    f"rank 0 at {endpoint} ended before all ranks had come ({error}): see what it says"
                ) from None
            table = self._table(packed, server.endpoint)
            if relay is not None:
                relay.pass_on(packed, until)
        return table

    def _table(self, packed: bytes, endpoint: tuple[str, int]) -> Table:
        """Return the table in the message `packed` of rank 0, which was reached at `endpoint`."""
        message = unpack_message(packed)
        if "error" in message:
            raise BootstrapError(str(message["error"]))
        members = [Member(*row) for row in message["members"]]
        if [member.rank for member in members] != list(range(self.size)):
            raise BootstrapError(f"rank 0 told rank {self.mine.rank} of {len(members)} ranks instead of {self.size}")
        # Rank 0 can be reached from here at this address, perhaps not at its others. Ranks of its host that have
        # connected over loopback listen at all addresses, so at this one as well.
        address, port = endpoint
        members[0] = replace(members[0], address=address, port=port)
        members = [
            replace(member, address=address)
            if member.host == members[0].host and is_loopback(member.address)
            else member
            for member in members
        ]
        agreed = {str(name): int(value) for name, value in message["agreed"].items()}
        return Table(tuple(members), agreed, bool(message["is_relayed"]))


@dataclass(frozen=True)
class Table:
    """The message of rank 0 to all ranks when all have connected. For the fields see `Rendezvous`."""

    members: tuple[Member, ...]
    agreed: dict[str, int]
    is_relayed: bool


def _listening(
    member: Member, connection: socket.socket, allowed: list[str] | None, further: Further
) -> tuple[list[socket.socket], Member]:
    """Listen for data links at the local address of `connection`, which leads to rank 0.

    Return the sockets, and `member` with their endpoints.
    """
    address = _own_address(connection.getsockname()[0], allowed)
    everywhere = "::" if ":" in address else "0.0.0.0"
    more = further(address)
    sockets = listen_at([everywhere if is_loopback(address) else address, *(each.address for each in more)])
    told = replace(
        member,
        address=address,
        port=sockets[0].getsockname()[1],
        further=",".join(f"{each.address}/{each.prefix}" for each in more),
    )
    return sockets, told


def _own_address(address: str, allowed: list[str] | None) -> str:
    """Return the address to listen at: `address` if it is allowed, else an allowed one, of the same family if
    possible."""
    if allowed is None or address in allowed:
        return address
    return min(allowed, key=lambda other: (":" in other) != (":" in address))
