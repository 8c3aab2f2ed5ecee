"""The messages between a launcher and the hosts that join it: a kind, a length and a payload of that length.

Between a launcher and an agent they carry the agent's standard streams, which both ends forward without reading them,
and what an SSH channel has besides: a request to kill, an exit status. Between launchers they carry events.
"""

from __future__ import annotations

import json
import platform
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from typing import Any

from distrun import __version__
from distrun.errors import LaunchError
from distrun.runner.protocol.handshake import HostError, HostInfo, check_compatibility
from distrun.runner.protocol.json_payload import JsonPayload

MAY_BE_TRIED_AGAIN = 143
"""The exit status where no rank has failed but a host was lost or late: as of a process that SIGTERM has ended."""


class LostError(HostError):
    """A host joined, and was gone before the launcher spoke to its agent."""

    status = MAY_BE_TRIED_AGAIN


_HEADER = struct.Struct("!BI")
_MAX_LENGTH = 1 << 26  # bytes


class MessageKind(IntEnum):
    """The meaning of a message: the first group comes from the launcher that listens, the second goes to it."""

    ACCEPTED = 1
    """The host has joined: a `client.Accepted`, JSON. Nothing follows until the job begins."""
    REFUSED = 2
    """The reason why the host may not join, text."""
    OCCUPIED = 3
    """The reason why the host may not join yet: another process with its index is there. Text."""
    INPUT = 4
    """Bytes for the agent's stdin."""
    KILL = 5
    """Kill the agent."""
    OVER = 6
    """The job is over, or does not begin: an `End`, JSON."""
    BEGIN = 7
    """The job begins with a launcher on every host: a `nodes.messages.Assembly`, JSON."""

    OUTPUT = 16
    """Bytes from the agent's stdout."""
    EXITED = 17
    """The agent is gone: an `AgentEnd`, JSON."""

    EVENT = 32
    """Between launchers, in both directions: a `nodes.messages.Notification`, JSON."""


_KINDS = frozenset(MessageKind)


def encode(kind: MessageKind, payload: bytes = b"") -> bytes:
    """Return the bytes of a message."""
    return _HEADER.pack(kind, len(payload)) + payload


class MessageDecoder:
    """Turns the bytes of a connection, which arrive in pieces of any size, into messages."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[MessageKind, bytes]]:
        """Take the next bytes and yield the messages that they complete.

        Raises:
            LaunchError: they are not a message.
        """
        self._pending += data
        while len(self._pending) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._pending)
            if kind not in _KINDS or length > _MAX_LENGTH:
                raise LaunchError(f"{bytes(self._pending[:60])!r} is no message of ours")
            end = _HEADER.size + length
            if len(self._pending) < end:
                return
            payload = bytes(self._pending[_HEADER.size : end])
            del self._pending[:end]
            yield MessageKind(kind), payload


def format_size(least: int, most: int) -> str:
    """Return a number of hosts as users type it: `2`, `2:4`."""
    return str(most) if least == most else f"{least}:{most}"


@dataclass(frozen=True)
class Member:
    """A host that joins a job, as it introduces itself."""

    index: int | None
    """Its number among the hosts, from 0, which is the launcher's host. None = any, for a host with its own launcher.
    """
    hosts: int
    """The number of hosts, as the user of this host has given it."""
    name: str
    ranks: int
    """The number of ranks that it starts."""
    wdir: str
    """The directory where its ranks start unless the launcher's user gives one."""
    gpus: tuple[str, ...] = ()
    """The GPUs that its ranks may use, as in CUDA_VISIBLE_DEVICES. Empty = those that they find."""
    machine: str = ""
    """A text that hosts share if they are one machine. See `machine.identity`. Empty = unknown."""
    distrun: str = __version__
    python: str = platform.python_version()
    least: int = 0
    """The number of hosts that are enough for the job to begin, as the user of this host has given it. 0 = all."""
    info: HostInfo | None = None
    """Its addresses and ports, if it has its own launcher. An agent gives them later, in its handshake."""

    @property
    def size(self) -> str:
        """The number of hosts, as `format_size` writes it."""
        return format_size(self.least or self.hosts, self.hosts)

    def to_json(self) -> dict[str, Any]:
        """Return the introduction."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Member:
        """Return what `to_json` wrote. Raises KeyError, TypeError or ValueError: it is something else."""
        info = values.get("info")
        info = None if info is None else HostInfo.from_json(json.dumps(info).encode())
        member = cls(**{**values, "gpus": tuple(values["gpus"]), "info": info})
        numbers = (member.index or 0, member.hosts, member.ranks, member.least)
        texts = (member.name, member.wdir, member.machine, member.distrun, member.python, *member.gpus)
        if not all(isinstance(value, int) for value in numbers) or not all(isinstance(value, str) for value in texts):
            raise ValueError("a number is not a number, or a text not a text")
        return member

    def incompatibility(self) -> str:
        """Return why this host cannot be used, such as for its version of distrun, with the remedy. Empty = it can."""
        info = self.info or HostInfo(self.distrun, self.python, 0)
        try:
            check_compatibility(replace(info, distrun=self.distrun), "python", __version__)
        except HostError as error:
            return str(error)
        return ""


@dataclass(frozen=True)
class AgentEnd(JsonPayload):
    """The end of an agent, as the process that started it reports it to the launcher."""

    returncode: int
    """As in `subprocess`: negative = a signal."""
    told_to_end: int = 0
    """The signal that made the joined process end the agent. 0 = none."""
    is_clean: bool = True
    """Whether nothing is left of what the agent had started."""


@dataclass(frozen=True)
class End(JsonPayload):
    """The end of a job, as the launcher sends it to the hosts that have joined."""

    status: int
    report: str = ""
    """The failure report, if there is one."""
    told_to_end: int = 0
    """The signal that the joined process received before the job ended. The launcher sends 0."""
