"""The node that hosts the rendezvous: it gathers the launchers of the others, and tells them when the job begins."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from distrun.errors import LaunchError
from distrun.host.connections.listener import Listener
from distrun.host.interfaces import Interface, is_loopback
from distrun.runner.hosts.nodes.connection import Connection
from distrun.runner.hosts.nodes.messages import Assembly, Node
from distrun.runner.hosts.nodes.roster import Roster
from distrun.runner.system.loop import Loop

_CHECK_INTERVAL = 1.0  # seconds after which clients that say nothing are looked for
_DISMISSAL_TIMEOUT = 2.0  # seconds in which a launcher takes the reason why it is not wanted
_LOOPBACK = Interface("lo", "127.0.0.1", 8)
_HERE = 0  # the number of our own node in the roster; connections are numbered from 1


class Server:
    """Listens until `close`, and keeps the connections of the nodes that have come."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        secret: bytes,
        node: Node,
        roster: Roster,
        is_encrypted: bool = False,
    ) -> None:
        """
        Args:
            listeners: sockets that listen, which this object closes.
            secret: what the nodes know each other by.
            node: our own node.
            roster: decides who may come; it is empty.
            is_encrypted: whether what the nodes say is encrypted.

        Raises:
            LaunchError: our own node is refused.
        """
        self._listener = Listener(listeners, secret, is_encrypted=is_encrypted)
        self._roster = roster
        self._connections: dict[int, Connection] = {}
        self._numbers = 0
        self._loop = Loop()
        self._loop.watch(self._listener.fileno(), self._admit)
        if reason := roster.arrive(_HERE, node, time.monotonic()):
            raise LaunchError(reason)

    def gather(self, timeout: float) -> tuple[Assembly, dict[str, Connection]]:
        """Wait until all nodes have come, and tell them.

        Returns:
            The nodes, and the connections with the launchers of the others, by host.

        Raises:
            LaunchError: too few have come in time. Those who have are told.
        """
        deadline = time.monotonic() + timeout
        try:
            while not self._roster.is_complete(now := time.monotonic()):
                if now >= deadline:
                    raise LaunchError(self._describe_late(timeout))
                times = [deadline, now + _CHECK_INTERVAL, self._roster.begins_at or deadline]
                self._loop.run_once(max(0.0, min(times) - now))
                self._admit()
        except LaunchError as error:
            self._dismiss(str(error))
            raise
        except BaseException:
            self._dismiss("the launcher that hosts the rendezvous was interrupted")
            raise
        return self._begin()

    def release(self) -> Listener:
        """Hand over the listener, which goes on listening; the connections that `gather` returned are the caller's."""
        self._loop.close()
        return self._listener

    def close(self) -> None:
        """Stop listening."""
        self.release().close()

    def _begin(self) -> tuple[Assembly, dict[str, Connection]]:
        job, nodes, order = secrets.token_hex(16), self._roster.nodes(), self._roster.order()
        peers = [connection.peer for connection in self._connections.values()]
        if all(peer and is_loopback(peer) for peer in peers):  # all are launchers of one machine
            nodes = tuple(replace(node, info=replace(node.info, addresses=(_LOOPBACK,))) for node in nodes)
        server = order.index(_HERE)
        others = {}
        for index, number in enumerate(order):
            if number != _HERE:
                connection = others[nodes[index].name] = self._connections[number]
                self._loop.unwatch(connection.fileno())
                _send(connection, Assembly(job, nodes, index, server).to_json())  # one that is gone is noticed later
        return Assembly(job, nodes, server, server), others

    def _admit(self) -> None:
        for connection, node in newcomers(self._listener):
            self._numbers += 1
            if reason := self._roster.arrive(self._numbers, node, time.monotonic()):
                dismiss(connection, reason)
            else:
                self._connections[self._numbers] = connection
                self._watch(self._numbers, connection)

    def _watch(self, number: int, connection: Connection) -> None:
        def leave() -> None:
            """Strike off a launcher that has ended: it has nothing to say before the job begins."""
            self._loop.unwatch(connection.fileno())
            self._roster.leave(number)
            del self._connections[number]
            connection.close()

        self._loop.watch(connection.fileno(), leave)

    def _dismiss(self, reason: str) -> None:
        for connection in self._connections.values():
            dismiss(connection, reason)
        self._connections.clear()

    def _describe_late(self, timeout: float) -> str:
        refused = self._listener.describe_refused().replace(
            "the job key", "DISTRUN_KEY, or --rdzv-id where it is unset"
        )
        return (
            f"{self._roster.describe()} within {timeout:g} s{f' ({refused})' if refused else ''}: start the launcher "
            "on the others too, or give them more time with --rdzv-conf timeout=S"
        )


def newcomers(listener: Listener) -> Iterator[tuple[Connection, Node]]:
    """Yield the launchers that have proved to know the secret by now; one that makes no sense is dismissed."""
    while (client := listener.receive(0.0)) is not None:
        connection = Connection(client[0])
        try:
            node = Node.from_json(client[1])
        except (KeyError, TypeError, ValueError):
            dismiss(connection, "the launcher that hosts the rendezvous is of another version: install the same on all")
        else:
            yield connection, node


def dismiss(connection: Connection, reason: str) -> None:
    """Tell a launcher why there is no job for it, and close the connection."""
    _send(connection, {"refused": reason})
    connection.close(_DISMISSAL_TIMEOUT)


def _send(connection: Connection, message: dict[str, Any]) -> None:
    try:
        connection.send(message)
    except OSError:
        pass
