"""The messages between the launcher and a host that has joined it: a kind, a length and that many bytes.

They carry the standard streams of the agent, which the two ends of the connection pass on unread, and what a channel of
SSH has besides: a request to kill, an exit status.
"""

from __future__ import annotations

import json
import platform
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from distrun import __version__
from distrun.errors import LaunchError
from distrun.runner.protocol.handshake import HostError, HostInfo, check_compatibility

MAY_BE_TRIED_AGAIN = 143
"""The exit status, as of a process that SIGTERM has ended, where no rank has failed: a host was lost, or was late."""


class LostError(HostError):
    """A host had joined, and is gone before its agent was spoken to."""

    status = MAY_BE_TRIED_AGAIN


_HEADER = struct.Struct("!BI")
_MAX_LENGTH = 1 << 26  # bytes


class MessageKind(IntEnum):
    """The meaning of a message: the first group comes from the launcher, the second goes to it."""

    ACCEPTED = 1
    """The host may join; nothing follows until the job begins."""
    REFUSED = 2
    """The reason why it may not; text."""
    OCCUPIED = 3
    """The reason why it may not yet, as another process with its index has not gone; text."""
    INPUT = 4
    """Bytes for the agent's stdin."""
    KILL = 5
    """Kill the agent."""
    OVER = 6
    """The job is over: an `End`, JSON."""

    OUTPUT = 16
    """Bytes from the agent's stdout."""
    EXITED = 17
    """The agent is gone: an `AgentEnd`, JSON."""


_KINDS = frozenset(MessageKind)


def encode(kind: MessageKind, payload: bytes = b"") -> bytes:
    """Return the bytes of a message."""
    return _HEADER.pack(kind, len(payload)) + payload


class MessageDecoder:
    """Turns the bytes of a connection, in pieces of any size, back into messages."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[MessageKind, bytes]]:
        """Take the next bytes and yield the messages that they complete.

        Raises:
            LaunchError: they are none of ours.
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


@dataclass(frozen=True)
class Member:
    """A host that joins a job, as it introduces itself."""

    index: int
    """Its number among the hosts, from 0: that of the launcher's host."""
    hosts: int
    """The number of hosts that it was told there are."""
    name: str
    ranks: int
    """The number of ranks that it takes."""
    wdir: str
    """The directory that its ranks start in unless the launcher's user gives one."""
    gpus: tuple[str, ...] = ()
    """The GPUs that its ranks may use, as in CUDA_VISIBLE_DEVICES; none = those that they find."""
    machine: str = ""
    """Hosts that are one machine say the same; see `machine.identity`. Empty = unknown."""
    distrun: str = __version__
    python: str = platform.python_version()

    def to_json(self) -> dict[str, Any]:
        """Return the introduction."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Member:
        """Return what `to_json` wrote. Raises KeyError, TypeError or ValueError: it is something else."""
        member = cls(**{**values, "gpus": tuple(values["gpus"])})
        numbers = (member.index, member.hosts, member.ranks)
        texts = (member.name, member.wdir, member.machine, member.distrun, member.python, *member.gpus)
        if not all(isinstance(value, int) for value in numbers) or not all(isinstance(value, str) for value in texts):
            raise ValueError("a number is none, or a text")
        return member

    def incompatibility(self) -> str:
        """Return why its distrun and ours cannot work together, with the remedy; empty = they can."""
        try:
            check_compatibility(HostInfo(self.distrun, self.python, 0), "python")
        except HostError as error:
            return str(error)
        return ""


@dataclass(frozen=True)
class AgentEnd:
    """The end of an agent, as the process that started it tells the launcher."""

    returncode: int
    """As in `subprocess`: negative = a signal."""
    told_to_end: int = 0
    """The signal by which somebody has ended the process that joined, and it the agent; 0 = nobody has."""
    is_clean: bool = True
    """Whether nothing is left of what the agent had started."""

    def to_json(self) -> bytes:
        """Return the payload of an EXITED message."""
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def from_json(cls, payload: bytes) -> AgentEnd:
        """Return what `to_json` wrote."""
        return cls(**json.loads(payload))


@dataclass(frozen=True)
class End:
    """The end of a job, as the launcher tells those that have joined."""

    status: int
    report: str = ""
    """The failure report, if there is one."""
    told_to_end: int = 0
    """The signal that has ended the process that joined, which knows of no end of the job; the launcher says 0."""

    def to_json(self) -> bytes:
        """Return the payload of an OVER message."""
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def from_json(cls, payload: bytes) -> End:
        """Return what `to_json` wrote."""
        return cls(**json.loads(payload))
