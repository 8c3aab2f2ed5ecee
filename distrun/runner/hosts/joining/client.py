"""The host's side of a rendezvous: it connects with the launcher and asks to join."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from distrun.errors import BootstrapError, LaunchError
from distrun.host.connections.dialer import dial
from distrun.host.connections.tcp_options import DEAD_HOST_TIMEOUT
from distrun.host.endpoints import format_endpoint
from distrun.runner.hosts.joining.connection import Connection
from distrun.runner.hosts.joining.endpoint import JoinEndpoint
from distrun.runner.hosts.joining.messages import Member, MessageKind

_ANSWER_TIMEOUT = 10.0  # seconds for the launcher to say whether this host may join


class RefusedError(LaunchError):
    """The launcher does not take this host."""


class OccupiedError(LaunchError):
    """Another process has joined with the same index, and may leave."""


@dataclass(frozen=True)
class Accepted:
    """A connection with a launcher that has accepted this host, and what it told."""

    connection: Connection
    job: str
    """The name of the job."""
    host: str
    """The name that the launcher uses for this host."""
    keepalive: float
    """Seconds without a message after which either side gives the other up. 0 = never."""


def connect(endpoint: JoinEndpoint, member: Member, deadline: float, stop_on: Sequence[int] = ()) -> Accepted:
    """Connect with the launcher at `endpoint` and ask to join as `member`.

    Stops trying to connect at the deadline, a time of `time.monotonic()`, or when a descriptor in `stop_on` becomes
    readable.

    Raises:
        BootstrapError: the launcher was not reached, or did not answer. It may be tried again.
        RefusedError: it does not take this host.
        OccupiedError: not yet, because another process has its index.
    """
    introduction = member.to_json()
    try:
        peer = dial([endpoint.address], endpoint.secret, introduction, deadline, None, stop_on, endpoint.is_encrypted)
    except BootstrapError as error:
        raise BootstrapError(str(error).replace("the job key", endpoint.key_name)) from None
    connection = Connection(peer.socket)
    try:
        connection.set_keepalive(DEAD_HOST_TIMEOUT, may_be_unread=True)
        kind, payload = connection.receive_one(_ANSWER_TIMEOUT)
        text = payload.decode(errors="replace")
        if kind is MessageKind.ACCEPTED:
            answer = json.loads(text)
            return Accepted(connection, str(answer["job"]), str(answer["host"]), float(answer["keepalive"]))
        if kind is MessageKind.OCCUPIED:
            raise OccupiedError(text)
        raise RefusedError(f"the launcher at {format_endpoint(*endpoint.address)} does not take this host: {text}")
    except OSError as error:
        connection.close()
        raise BootstrapError(f"it did not say whether this host may join: {error}") from None
    except BaseException:
        connection.close()
        raise
