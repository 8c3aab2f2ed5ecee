"""The handshake between the launcher and an agent on another host: a greeting, host info in return, and a check.

Both messages are JSON objects. Unknown members are ignored, because the two ends may be of different versions, and the
handshake is there to find that out. A login shell may print something before the agent answers, so the answer begins
with `MAGIC`.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from distrun import __version__
from distrun.errors import LaunchError
from distrun.host.endpoints import free_ports
from distrun.host.gpus import visible_names
from distrun.host.interfaces import Interface, own_interfaces, reachable, without_zone
from distrun.runner.protocol.frames import HEADER, MAX_PAYLOAD
from distrun.runner.system import machine
from distrun.runner.system.installation import install_command

MAGIC = b"\0distrun agent\0"
_MAX_NOISE = 1 << 20  # bytes a login may print
_MISSING = re.compile(r"No module named '(?!distrun\b)(\w+)'")


class HostError(LaunchError):
    """A host cannot be used; the text says why and what to do, and does not name the host."""


class NoPythonError(HostError):
    """A host has no program of the name that its Python was given by."""


class AllocationOverError(HostError):
    """The scheduler's job is over, so none of its hosts can ever be used again."""


@dataclass(frozen=True)
class Greeting:
    """The launcher's message: all that the agent must know before the plan comes."""

    keepalive: float
    """Seconds of silence after which either end gives the other up; 0 = never."""
    wdir: str
    """The working directory of the ranks."""
    ports: int = 0
    """The number of free ports that the ranks need, besides the one for rank 0."""
    allowed_ports: str = ""
    """The ports at which agent and ranks may listen, as in DISTRUN_PORTS; empty = any."""
    sealing: str = ""
    """The launcher's public key, with which the agent's makes what seals frames; empty = frames are not sealed."""
    credential: str = ""
    """A munge credential that vouches for it; empty = there is no munge here."""
    servers: int = 0
    """The number of parameter servers that may be on the host; each listens at a port that the agent reserves."""

    def to_json(self) -> bytes:
        """Return the payload of a HELLO frame."""
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def from_json(cls, payload: bytes) -> Greeting:
        """Return what `to_json` wrote, as far as this version knows its members."""
        return cls(**_known(cls, payload))


@dataclass(frozen=True)
class HostInfo:
    """The agent's message: its versions, and the addresses and ports of its host."""

    distrun: str
    python: str
    pid: int
    port: int = 0
    """A free port of its host, for rank 0 to listen on."""
    problem: str = ""
    """The reason why its host cannot be used; empty = it can."""
    addresses: tuple[Interface, ...] = ()
    """The interfaces of its host that other hosts can reach."""
    rendezvous: int = 0
    """A port on all addresses of its host that the agent reserves until it leaves; rank 0 binds it with SO_REUSEPORT.
    """
    ports: tuple[int, ...] = ()
    """The free ports that the greeting asked for."""
    machine: str = ""
    """Agents that share a host say the same here, under whichever names; see `machine.identity`. Empty = unknown."""
    sealing: str = ""
    """The agent's public key, if the launcher has one and it can be used here; see `sealed_frames`."""
    credential: str = ""
    """A munge credential that vouches for it, if there was one for the launcher's."""
    gpus: tuple[str, ...] = ()
    """The GPUs that its processes see, as CUDA_VISIBLE_DEVICES names them."""
    servers: tuple[int, ...] = ()
    """The ports that it reserves for parameter servers, as it does that of the rendezvous."""

    def to_json(self) -> bytes:
        """Return the payload of a HELLO frame."""
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def from_json(cls, payload: bytes) -> HostInfo:
        """Return what `to_json` wrote, as far as this version knows its members."""
        values = dict(_known(cls, payload))
        values["addresses"] = tuple(Interface(*item) for item in values.get("addresses", ()))
        values |= {name: tuple(values.get(name, ())) for name in ("ports", "servers", "gpus")}
        return cls(**values)


def _known(cls: Any, payload: bytes) -> Mapping[str, Any]:
    names = {field.name for field in fields(cls)}
    return {name: value for name, value in json.loads(payload).items() if name in names}


def describe_host(
    greeting: Greeting, reservation: socket.socket, for_servers: Sequence[socket.socket] = ()
) -> HostInfo:
    """Return the host info of this process.

    Args:
        greeting: the launcher's message.
        reservation: the socket that reserves the port for the rendezvous; see `distrun.host.endpoints.reserve_port`.
        for_servers: those that reserve the ports of parameter servers.
    """
    problem = ""
    if not os.path.isdir(greeting.wdir):
        problem = (
            f"the working directory {greeting.wdir!r} does not exist there; give one that does with --wdir, or "
            "bring it with --ship"
        )
    port, *ports = free_ports(1 + greeting.ports)
    return HostInfo(
        __version__,
        platform.python_version(),
        os.getpid(),
        port,
        problem,
        tuple(reachable(own_interfaces(_ssh_address()))),
        reservation.getsockname()[1],
        tuple(ports),
        machine.identity(),
        gpus=visible_names(os.environ),
        servers=tuple(kept.getsockname()[1] for kept in for_servers),
    )


def _ssh_address() -> str:
    """Return the address of this host that the SSH connection of this process came by; empty: it has none."""
    words = os.environ.get("SSH_CONNECTION", "").split()  # "10.0.0.1 41002 10.0.0.2 22": from, to
    return without_zone(words[2]) if len(words) == 4 else ""


def find_first_frame(stream: bytes) -> tuple[bytes, bytes] | None:
    """Find the first frame, after `MAGIC`, in what a program has written so far.

    Returns:
        Its payload and what follows it; None when more must come.

    Raises:
        HostError: too much has come without a frame, or what has come is none of ours.
    """
    noise, magic, frame = stream.partition(MAGIC)
    if not magic:
        if len(noise) > _MAX_NOISE:
            raise HostError(f"logging in there prints without end: {noise[:100]!r}")
        return None
    if len(frame) < HEADER.size:
        return None
    length = HEADER.unpack_from(frame)[2]
    if length > MAX_PAYLOAD:
        raise HostError(f"what answers there is not distrun: {frame[:60]!r}")
    end = HEADER.size + length
    return (frame[HEADER.size : end], frame[end:]) if len(frame) >= end else None


def check_compatibility(
    info: HostInfo, python: str, version: str = __version__, own: str = platform.python_version()
) -> str:
    """Check whether we can work with a host.

    Args:
        info: the answer of its agent.
        python: the Python there, for the remedy.
        version: our distrun.
        own: our Python.

    Returns:
        A remark for the user; empty when there is nothing to remark.

    Raises:
        HostError: we cannot.
    """
    if info.distrun != version:
        raise HostError(
            f"distrun {info.distrun} is installed there and {version} here; run there {install_command(python)}"
        )
    if info.problem:
        raise HostError(info.problem)
    if _minor(info.python) != _minor(own):
        return f"has Python {info.python}, and here is {own}: what one pickles the other may not understand"
    return ""


def explain_failed_start(status: int, output: str, python: str) -> str:
    """Return the reason why a program of ours did not start on a host, and the remedy.

    Args:
        status: the exit status of the remote command, negative when there is none.
        output: everything that it and the login shell wrote.
        python: the Python that was to run it.
    """
    last = "; ".join(line.strip() for line in output.strip().splitlines()[-3:] if line.strip())
    if status in (126, 127):
        return f"its Python {python!r} cannot be started ({last}); give the path of one with --python"
    if "No module named 'distrun'" in output:
        return (
            f"distrun is not installed for {python}; run there {install_command(python)}, or leave out --no-bootstrap"
        )
    # ModuleNotFoundError: No module named 'psutil'
    if (missing := _MISSING.search(output)) is not None:
        return (
            f"{missing[1]}, which distrun needs, is not installed for {python}; "
            f"run there '{python} -m pip install {missing[1]}'"
        )
    if "distrun needs Python" in output:
        return f"{last} ({python}); give the path of a newer one with --python"
    code = f"exit code {status}" if status >= 0 else "no exit code"
    return f"the agent did not start ({code}): {last or 'it wrote nothing'}"


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
