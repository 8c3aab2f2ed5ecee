"""A node that does not host the rendezvous: it finds the one that does, and waits until the job begins."""

from __future__ import annotations

import select
import time

from distrun.errors import BootstrapError, LaunchError
from distrun.host.connections.dialer import dial
from distrun.runner.hosts.nodes.connection import Connection
from distrun.runner.hosts.nodes.messages import Assembly, Node


def find(
    endpoint: tuple[str, int], secret: bytes, node: Node, seconds: float, is_encrypted: bool = False
) -> Connection:
    """Connect with the launcher that hosts the rendezvous.

    Raises:
        BootstrapError: it was not found in time.
    """
    deadline = time.monotonic() + seconds
    return Connection(dial([endpoint], secret, node.to_json(), deadline, is_encrypted=is_encrypted).socket)


def wait(connection: Connection) -> Assembly:
    """Wait until the job begins.

    Raises:
        LaunchError: it does not; the text says why.
        BootstrapError: the other launcher has ended.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    try:
        while True:
            poll.poll()
            for message in connection.receive():
                if "refused" in message:
                    raise LaunchError(str(message["refused"]))
                return Assembly.from_json(message)
    except OSError as error:
        raise BootstrapError(f"the launcher that hosts the rendezvous has ended: {error}") from None
