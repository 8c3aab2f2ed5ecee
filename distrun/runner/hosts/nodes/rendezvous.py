"""The rendezvous of a job whose launcher is started on every node: who hosts it, and who is there."""

from __future__ import annotations

import errno
import hashlib
import hmac
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from distrun.errors import BootstrapError, LaunchError, UsageError
from distrun.host.connections.listener import listen
from distrun.host.endpoints import format_endpoint
from distrun.host.interfaces import addresses_on_own_host, own_interfaces
from distrun.runner.hosts.nodes import client
from distrun.runner.hosts.nodes.connection import Connection
from distrun.runner.hosts.nodes.messages import Assembly, Node
from distrun.runner.hosts.nodes.peers import Peers
from distrun.runner.hosts.nodes.roster import Roster, Size
from distrun.runner.hosts.nodes.server import Server

_NOTICE_AFTER = 10.0  # seconds of looking for the other nodes after which the user is told what we are waiting for


@dataclass(frozen=True)
class Place:
    """Where the nodes of a job meet, and what they know each other by."""

    endpoint: tuple[str, int]
    """A name or an address of one of the nodes, and a port."""
    secret: bytes
    size: Size
    timeout: float
    """Seconds in which the nodes have to come."""
    hosts: bool | None = None
    """Whether this node hosts the rendezvous; None = if the endpoint is its own."""
    is_encrypted: bool = False
    """Whether what the launchers say to each other is encrypted."""


@dataclass(frozen=True)
class Meeting:
    """A job that can begin: its nodes, its key, and the connections with the other launchers."""

    assembly: Assembly
    key: str
    peers: Peers


def secret_of(key: bytes | None, name: str) -> bytes:
    """Return what nodes know each other by: a secret if there is one, or else no more than the name of the job."""
    return hashlib.sha256(b"distrun rendezvous\0" + (key if key is not None else name.encode())).digest()


def meet(place: Place, node: Node, say: Callable[[str], None]) -> Meeting:
    """Find the launchers of the other nodes, and wait until all have come.

    Args:
        place: where.
        node: our own node.
        say: tells the user what is waited for, when that takes long.

    Raises:
        UsageError: we are to host the rendezvous and cannot.
        LaunchError: too few nodes have come in time, or ours is not wanted.
    """
    deadline = time.monotonic() + place.timeout
    is_told = False
    while True:
        if listeners := _own_listeners(place):
            return _host(place, listeners, node)
        left = deadline - time.monotonic()
        try:
            connection = client.find(place.endpoint, place.secret, node, min(left, _NOTICE_AFTER), place.is_encrypted)
            return _join(place, connection)
        except BootstrapError as error:
            reason = str(error).replace("the job key", "DISTRUN_KEY, or --rdzv-id where that is unset")
        where = format_endpoint(*place.endpoint)
        if time.monotonic() >= deadline:
            raise LaunchError(
                f"the other nodes were not found at {where} within {place.timeout:g} s: {reason}; see that the "
                "launcher is started on the host that has this address, and that --rdzv-endpoint and --rdzv-id are "
                "the same everywhere"
            )
        if not is_told:
            say(f"waiting for the node at {where}: {reason}")
            is_told = True


def _host(place: Place, listeners: list[socket.socket], node: Node) -> Meeting:
    server = Server(listeners, place.secret, node, Roster(place.size), place.is_encrypted)
    try:
        assembly, connections = server.gather(place.timeout)
    except BaseException:
        server.close()
        raise
    peers = Peers(assembly.nodes[assembly.here].name, connections, connections, server.release())
    return Meeting(assembly, _job_key(place, assembly), peers)


def _join(place: Place, connection: Connection) -> Meeting:
    try:
        assembly = client.wait(connection)
    except BaseException:
        connection.close()
        raise
    names = [node.name for node in assembly.nodes]
    peers = Peers(names[assembly.here], {names[assembly.server]: connection}, set(names) - {names[assembly.here]})
    return Meeting(assembly, _job_key(place, assembly), peers)


def _job_key(place: Place, assembly: Assembly) -> str:
    """Return the key of the ranks, which every node makes by itself: so it never travels."""
    return hmac.digest(place.secret, b"distrun job\0" + assembly.job.encode(), "sha256").hex()


def _own_listeners(place: Place) -> list[socket.socket]:
    """Listen at the endpoint if it is ours and nobody does yet; none otherwise.

    Raises:
        UsageError: we are to host the rendezvous, and cannot.
    """
    name, port = place.endpoint
    if place.hosts is False:
        return []
    listeners = []
    reason = "there is no such address"
    for address in _addresses(name):
        try:
            listeners.append(listen(address, port))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            if error.errno == errno.EADDRINUSE:  # another launcher of this host was the first
                break
    else:
        if listeners:
            return listeners
    for listener in listeners:
        listener.close()
    if place.hosts:
        raise UsageError(
            f"this node is to host the rendezvous at {format_endpoint(name, port)} and cannot: {reason}; give an "
            "address of this host and a free port with --rdzv-endpoint"
        )
    return []


def _addresses(name: str) -> list[str]:
    """Return the addresses that a name means if it is a name of this host.

    A pod that is starting may not find its own name at a name server yet.
    """
    try:
        return addresses_on_own_host(name)
    except (OSError, UnicodeError):
        is_own = name.partition(".")[0] == socket.gethostname().partition(".")[0]
        return [interface.address for interface in own_interfaces()] if is_own else []
