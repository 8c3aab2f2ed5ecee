"""The first words between the launcher and an agent on another host: who are you, and can we work together?

Both are JSON objects whose unknown members are ignored, because the two ends may be of different versions: telling that
is what they are for. What a login shell prints comes before the agent's answer, which therefore begins with `MAGIC`.
"""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from distrun import __version__
from distrun.errors import LaunchError
from distrun.host.endpoints import free_ports
from distrun.host.interfaces import Interface, own_interfaces, reachable
from distrun.runner.protocol.frames import HEADER, MAX_PAYLOAD

MAGIC = b"\0distrun agent\0"
_MOST_NOISE = 1 << 20  # bytes a login may print


class HostError(LaunchError):
    """A host cannot be used; the text says why and what to do, and does not name the host."""


@dataclass(frozen=True)
class Greeting:
    """What the launcher says."""

    keepalive: float
    """Seconds of silence after which either end gives the other up; 0 = never."""
    wdir: str
    ports: int = 0
    """How many free ports of the host are asked for, besides the one for rank 0."""

    def to_json(self) -> bytes:
        """As the payload of a HELLO frame."""
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def from_json(cls, payload: bytes) -> Greeting:
        """The inverse of `to_json`."""
        return cls(**_known(cls, payload))


@dataclass(frozen=True)
class HostInfo:
    """What the agent says."""

    distrun: str
    python: str
    pid: int
    port: int = 0
    """A free port of its host, for rank 0 to listen on."""
    problem: str = ""
    """Why its host cannot be used; empty = it can."""
    addresses: tuple[Interface, ...] = ()
    """Its host's interfaces that other hosts may know."""
    rendezvous: int = 0
    """A port of its host, on all addresses, that the agent keeps until it leaves: for rank 0 to bind with SO_REUSEPORT."""
    ports: tuple[int, ...] = ()
    """The free ports it was asked for."""

    def to_json(self) -> bytes:
        """As the payload of a HELLO frame."""
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def from_json(cls, payload: bytes) -> HostInfo:
        """The inverse of `to_json`."""
        values = dict(_known(cls, payload))
        values["addresses"] = tuple(Interface(*item) for item in values.get("addresses", ()))
        values["ports"] = tuple(values.get("ports", ()))
        return cls(**values)


def _known(cls: Any, payload: bytes) -> Mapping[str, Any]:
    names = {field.name for field in fields(cls)}
    return {name: value for name, value in json.loads(payload).items() if name in names}


def describe_host(greeting: Greeting, keeper: socket.socket) -> HostInfo:
    """The answer of this process.

    Args:
        greeting: what the launcher said.
        keeper: the socket that keeps the port for the rendezvous; see `endpoints.reserve_port`.
    """
    problem = ""
    if not os.path.isdir(greeting.wdir):
        problem = f"the working directory {greeting.wdir!r} does not exist there; give one that does with --wdir"
    port, *ports = free_ports(1 + greeting.ports)
    return HostInfo(
        __version__,
        platform.python_version(),
        os.getpid(),
        port,
        problem,
        tuple(reachable(own_interfaces())),
        keeper.getsockname()[1],
        tuple(ports),
    )


def find_first_frame(stream: bytes) -> tuple[bytes, bytes] | None:
    """Find the answer's payload in what has come so far; returns it and the rest, None when there must come more.

    Raises:
        HostError: too much has come without an answer.
    """
    noise, magic, frame = stream.partition(MAGIC)
    if not magic:
        if len(noise) > _MOST_NOISE:
            raise HostError(f"logging in there prints without end: {noise[:100]!r}")
        return None
    if len(frame) < HEADER.size:
        return None
    length = HEADER.unpack_from(frame)[2]
    if length > MAX_PAYLOAD:
        raise HostError(f"what answers there is no agent of ours: {frame[:60]!r}")
    end = HEADER.size + length
    return (frame[HEADER.size : end], frame[end:]) if len(frame) >= end else None


def check_compatibility(
    answer: HostInfo, python: str, version: str = __version__, own: str = platform.python_version()
) -> str:
    """Whether an agent is one to work with.

    Args:
        answer: what it says.
        python: the remote command, for the remedy.
        version: our distrun.
        own: our Python.

    Returns:
        A sentence the user should read, or nothing.

    Raises:
        HostError: it is not.
    """
    if answer.distrun != version:
        raise HostError(
            f"distrun {answer.distrun} is installed there and {version} here; "
            f"run there '{python} -m pip install distrun=={version}'"
        )
    if answer.problem:
        raise HostError(answer.problem)
    if _minor(answer.python) != _minor(own):
        return f"has Python {answer.python}, and here is {own}: what one pickles the other may not understand"
    return ""


def explain_failed_start(status: int, output: str, python: str) -> str:
    """Why an agent did not come to life.

    Args:
        status: the exit status of the remote command, negative when there is none.
        output: what it and the login wrote.
        python: the command that was to run it.
    """
    last = "; ".join(line.strip() for line in output.strip().splitlines()[-3:] if line.strip())
    if status in (126, 127):
        return f"its Python {python!r} cannot be started ({last}); give the path of one with --python"
    if "No module named 'distrun'" in output:
        return f"distrun is not installed for {python}; run there '{python} -m pip install distrun=={__version__}'"
    if "distrun needs Python" in output:
        return f"{last} ({python}); give the path of a newer one with --python"
    code = f"exit code {status}" if status >= 0 else "no exit code"
    return f"the agent did not start ({code}): {last or 'it wrote nothing'}"


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
