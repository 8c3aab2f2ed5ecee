"""The rendezvous of launchers: which of them hosts it, which hosts the job has, and the key of its ranks."""

from __future__ import annotations

import errno
import hmac
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from distrun.errors import BootstrapError, LaunchError, UsageError
from distrun.host.connections.listener import listen
from distrun.host.connections.tcp_options import DEAD_HOST_TIMEOUT
from distrun.host.endpoints import format_endpoint
from distrun.host.interfaces import Interface, addresses_on_own_host, is_loopback, own_interfaces
from distrun.runner.hosts.joining.client import OccupiedError, connect
from distrun.runner.hosts.joining.endpoint import JoinEndpoint
from distrun.runner.hosts.joining.listener import JoinListener
from distrun.runner.hosts.joining.messages import End, Member, MessageKind
from distrun.runner.hosts.joining.roster import LAST_CALL
from distrun.runner.hosts.nodes.messages import Assembly, with_unique_names
from distrun.runner.hosts.nodes.peers import Peers
from distrun.runner.protocol.handshake import HostInfo

_NOTICE_AFTER = 10.0  # seconds of looking for the other launchers after which the user is notified
_LOOPBACK = Interface("lo", "127.0.0.1", 8)


@dataclass(frozen=True)
class RendezvousOptions:
    """Where the launchers of a job meet, and how many they are."""

    endpoint: JoinEndpoint
    least: int
    most: int
    last_call: float = LAST_CALL
    """Seconds to wait for further launchers once there are `least`."""
    is_host: bool | None = None
    """Whether this launcher hosts the rendezvous. None = if the endpoint is an address of its host."""


def rendezvous(
    options: RendezvousOptions, member: Member, notify_user: Callable[[str], None]
) -> tuple[Assembly, Peers]:
    """Find the launchers of the other hosts, and wait until all have come. `member` is the host of this process.

    `notify_user` shows a sentence to the user: what is waited for, when that takes long.

    Raises:
        UsageError: this launcher is to host the rendezvous and cannot.
        LaunchError: too few launchers have come in time, or this one was refused.
    """
    endpoint = options.endpoint
    where = format_endpoint(*endpoint.address)
    deadline = time.monotonic() + endpoint.timeout
    is_notified = False
    while True:
        if listeners := _own_listeners(options):
            return _host(options, listeners, member)
        try:
            return _join(endpoint, member, min(deadline, time.monotonic() + _NOTICE_AFTER))
        except OccupiedError as error:
            remedy = f"give each node its own --node-rank, 0 to {member.hosts - 1}, or none"
            raise LaunchError(f"{error}: {remedy}") from None
        except BootstrapError as error:
            reason = str(error)
        if time.monotonic() >= deadline:
            raise LaunchError(
                f"the other nodes were not found at {where} within {endpoint.timeout:g} s: {reason}; see that the "
                "launcher is started on the host that has this address, and that --rdzv-endpoint and --rdzv-id are "
                "the same everywhere"
            )
        if not is_notified:
            notify_user(f"waiting for the node at {where}: {reason}")
            is_notified = True


def _host(options: RendezvousOptions, listeners: list[socket.socket], member: Member) -> tuple[Assembly, Peers]:
    """Host the rendezvous: wait until all have joined, and let them begin."""
    endpoint, job = options.endpoint, secrets.token_hex(16)
    join_listener = JoinListener(
        listeners, endpoint, member, job, lambda text: None, DEAD_HOST_TIMEOUT, last_call=options.last_call
    )
    try:
        if incompatibility := member.incompatibility():
            raise LaunchError(f"{member.name} cannot be used: {incompatibility}")
        members, connections = join_listener.gather_all()
    except LaunchError as error:
        join_listener.close(End(1, str(error)))
        raise LaunchError(str(error)) from None  # not with the status of hosts that may be tried again
    except BaseException:
        join_listener.close(End(1, "the launcher that hosts the rendezvous was interrupted"))
        raise
    nodes = with_unique_names(members)
    if all(connection.peer and is_loopback(connection.peer) for connection in connections.values()):
        nodes = [replace(node, info=replace(_info(node), addresses=(_LOOPBACK,))) for node in nodes]  # one machine
    (server,) = (place for place, node in enumerate(nodes) if node.index not in connections)
    assembly = Assembly(job, tuple(nodes), server, server)
    others = {}
    for place, node in enumerate(nodes):
        if place != server and node.index is not None:
            others[node.name] = connections[node.index]
            others[node.name].put(MessageKind.BEGIN, replace(assembly, here=place).to_json())
            with suppress(OSError):  # it is gone again, which `Peers` notices
                others[node.name].flush()
    return assembly, Peers(nodes[server].name, others, others, join_listener)


def _join(endpoint: JoinEndpoint, member: Member, deadline: float) -> tuple[Assembly, Peers]:
    """Join the rendezvous that another launcher hosts, and wait until the job begins.

    Raises:
        BootstrapError: no launcher was reached by the deadline, or it has ended.
        LaunchError: the job does not begin, or not with this host.
    """
    connection = connect(endpoint, member, deadline).connection
    try:
        kind, payload = connection.receive_one()
        if kind is not MessageKind.BEGIN:
            raise LaunchError(End.from_json(payload).report)
        assembly = Assembly.from_json(payload)
    except OSError as error:
        connection.close()
        raise BootstrapError(f"the launcher that hosts the rendezvous has ended: {error}") from None
    except BaseException:
        connection.close()
        raise
    names = [node.name for node in assembly.nodes]
    here = names[assembly.here]
    return assembly, Peers(here, {names[assembly.server]: connection}, set(names) - {here})


def _info(node: Member) -> HostInfo:
    assert node.info is not None  # all hosts with their own launcher have it
    return node.info


def job_key(endpoint: JoinEndpoint, assembly: Assembly) -> str:
    """Return the key of the ranks. Every launcher derives it by itself, so it never travels."""
    return hmac.digest(endpoint.secret, b"distrun job\0" + assembly.job.encode(), "sha256").hex()


def _own_listeners(options: RendezvousOptions) -> list[socket.socket]:
    """Listen at the endpoint if it is this host's and no other launcher does. Return no sockets otherwise.

    Raises:
        UsageError: this launcher is to host the rendezvous, and cannot.
    """
    name, port = options.endpoint.address
    if options.is_host is False:
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
    if options.is_host:
        raise UsageError(
            f"this node is to host the rendezvous at {format_endpoint(name, port)} and cannot: {reason}; give an "
            "address of this host and a free port with --rdzv-endpoint"
        )
    return []


def _addresses(name: str) -> list[str]:
    """Return the addresses of `name` if it names this host.

    A pod that is starting may not find its own name at a name server yet.
    """
    try:
        return addresses_on_own_host(name)
    except (OSError, UnicodeError):
        is_own = name.partition(".")[0] == socket.gethostname().partition(".")[0]
        return [interface.address for interface in own_interfaces()] if is_own else []
