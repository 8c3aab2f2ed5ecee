"""The connections of the control tree, of each leader with its parent and its children.

After the rendezvous, one or more ranks of each other host are connected with rank 0. Those that are not children of
rank 0 close this connection. Then leaders dial their parents at the endpoints where these listen for data connections.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from distrun.contract.elastic.interruption import Interruption, await_readable, check, stop_descriptors
from distrun.errors import BootstrapError
from distrun.host.connections.dialer import dial
from distrun.host.interfaces import is_loopback
from distrun.runtime.transport.control.control_tree import ControlTree
from distrun.runtime.transport.rendezvous.protocol import ALARM, CONTROL, DATA, Rendezvous

_PURPOSES = (CONTROL, ALARM)
_CHECK_INTERVAL = 0.5  # seconds


def connect_tree(
    rendezvous: Rendezvous, tree: ControlTree, deadline: float, interruption: Interruption | None = None
) -> dict[int, socket.socket]:
    """Replace the connections of a rendezvous by connections with this rank's parent and children in the tree.

    Args:
        rendezvous: its `control` and `alarms` are changed to the connections with the parent and the children.
        tree: the place of this rank.
        deadline: the monotonic time when to stop trying.
        interruption: may end the wait earlier.

    Returns:
        The data connections that other ranks have made with this one in the meantime, by rank.

    Raises:
        BootstrapError: the parent cannot be reached, or a child has not connected in time.
    """
    kept = set(tree.children) if not tree.rank else {0} & {tree.parent}
    kinds = {CONTROL: rendezvous.control, ALARM: rendezvous.alarms}
    for connections in kinds.values():
        for rank in [rank for rank in connections if rank not in kept]:
            connections.pop(rank).close()
    parent = tree.parent
    if parent is not None and parent not in rendezvous.control:
        for purpose, connections in kinds.items():
            connections[parent] = _dial(rendezvous, tree, parent, purpose, deadline, interruption)
    missing = {(purpose, child) for purpose in _PURPOSES for child in tree.children if child not in kinds[purpose]}
    early: dict[int, socket.socket] = {}
    while missing:
        with suppress(TimeoutError):
            await_readable(rendezvous.listener, min(deadline, time.monotonic() + _CHECK_INTERVAL), interruption)
        client = rendezvous.listener.receive(0)
        check(interruption)
        if client is None:
            if time.monotonic() >= deadline:
                raise BootstrapError(_missing(rendezvous, tree, sorted({child for _, child in missing})))
            continue
        connection, introduction = client
        purpose, rank = str(introduction.get("purpose")), int(introduction.get("rank", -1))
        if (purpose, rank) in missing:
            missing.remove((purpose, rank))
            kinds[purpose][rank] = connection
        elif purpose == DATA and rank not in early:
            early[rank] = connection
        else:
            connection.close()
    return early


def _dial(
    rendezvous: Rendezvous,
    tree: ControlTree,
    parent: int,
    purpose: str,
    deadline: float,
    interruption: Interruption | None,
) -> socket.socket:
    ours, there = rendezvous.members[tree.rank], rendezvous.members[parent]
    source = None if is_loopback(ours.address) else ours.address
    stop_on = stop_descriptors(interruption)
    introduction = {"rank": tree.rank, "purpose": purpose}
    at = [(there.address, there.port)]
    try:
        return dial(at, rendezvous.key, introduction, deadline, source, stop_on, rendezvous.is_encrypted).socket
    except BootstrapError as error:
        check(interruption)
        passes_on = ", which passes on the messages of rank 0" if parent else ""
        raise BootstrapError(
            f"rank {tree.rank} on host {ours.hostname} ({ours.address}) cannot reach rank {parent} on host "
            f"{there.hostname}{passes_on}: {error}"
        ) from None


def _missing(rendezvous: Rendezvous, tree: ControlTree, children: list[int]) -> str:
    who = ", ".join(str(rendezvous.members[child]) for child in children)
    refused = rendezvous.listener.describe_refused()
    return (
        f"rank {tree.rank} waited in vain for a connection from {who}"
        f"{f' ({refused})' if refused else ''}{', to which it passes on the messages of rank 0' if tree.rank else ''}"
    )
