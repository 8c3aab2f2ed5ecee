"""The handshake between the launcher and an agent on another host: a greeting, host info in return, and a check.

Both messages are JSON objects. Unknown members are ignored, because the two ends may be of different versions, which
the handshake is there to find out. A login shell may print something before the agent answers, so the answer begins
with `MAGIC`.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from distrun import __version__
from distrun.errors import LaunchError
from distrun.host.endpoints import free_ports
from distrun.host.gpus import visible_names
from distrun.host.interfaces import Interface, own_interfaces, reachable, without_zone
from distrun.runner.protocol.frames import HEADER, MAX_PAYLOAD
from distrun.runner.protocol.json_payload import JsonPayload
from distrun.runner.system import machine
from distrun.runner.system.installation import install_command

MAGIC = b"\0distrun agent\0"
_MAX_NOISE = 1 << 20  # bytes a login may print
_MISSING = re.compile(r"No module named '(?!distrun\b)(\w+)'")


class HostError(LaunchError):
    """A host cannot be used. The text says why and what to do, and does not name the host."""


class NoPythonError(HostError):
    """The Python that the launch asks for does not exist on a host."""


class AllocationOverError(HostError):
    """The scheduler's job is over, so its hosts can never be used again."""


@dataclass(frozen=True)
class Greeting(JsonPayload):
    """The launcher's message: everything that the agent must know before the plan comes."""

    keepalive: float
    """Seconds without a message after which either end counts the other as lost. 0 = never."""
    wdir: str
    """The working directory of the ranks."""
    ports: int = 0
    """The number of free ports that the ranks need, besides the one for rank 0."""
    allowed_ports: str = ""
    """The ports that agent and ranks may listen on, as in DISTRUN_PORTS. Empty = any."""
    sealing: str = ""
    """The launcher's public key, for the key exchange of sealed frames. Empty = frames are not sealed."""
    credential: str = ""
    """A munge credential that vouches for `sealing`. Empty = the launcher's machine has no munge."""
    servers: int = 0
    """The number of parameter servers that may be on the host. Each listens on a port that the agent reserves."""

    @classmethod
    def from_json(cls, payload: bytes) -> Greeting:
        """Return the greeting that `to_json` wrote, without members that this version does not know."""
        return cls(**_known(cls, payload))


@dataclass(frozen=True)
class HostInfo(JsonPayload):
    """The agent's message: its versions, and the addresses and ports of its host."""

    distrun: str
    python: str
    pid: int
    port: int = 0
    """A free port of the host, for rank 0 to listen on."""
    problem: str = ""
    """The reason why the host cannot be used. Empty = it can be used."""
    addresses: tuple[Interface, ...] = ()
    """The interfaces of the host that other hosts can reach."""
    rendezvous: int = 0
    """A port on all addresses of the host that the agent reserves until it exits. Rank 0 binds it with SO_REUSEPORT."""
    ports: tuple[int, ...] = ()
    """The free ports that the greeting asked for."""
    machine: str = ""
    """The identity of the machine, which is the same for all names of a host. See `machine.identity`. Empty = unknown.
    """
    sealing: str = ""
    """The agent's public key, if the launcher has sent one and the host can use it. See `sealed_frames`."""
    credential: str = ""
    """A munge credential that vouches for `sealing`, if the launcher sent one for its own key."""
    gpus: tuple[str, ...] = ()
    """The GPUs that the host's processes see, as CUDA_VISIBLE_DEVICES names them."""
    servers: tuple[int, ...] = ()
    """The ports that the agent reserves for parameter servers, in the same way as `rendezvous`."""

    @classmethod
    def from_json(cls, payload: bytes) -> HostInfo:
        """Return the host info that `to_json` wrote, without members that this version does not know."""
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
        reservation: the socket that reserves the port for the rendezvous. See `distrun.host.endpoints.reserve_port`.
        for_servers: the sockets that reserve the ports of parameter servers.
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
    """Return the address of this host that this process's SSH connection was made to, or "" without SSH."""
    words = os.environ.get("SSH_CONNECTION", "").split()  # "10.0.0.1 41002 10.0.0.2 22": from, to
    return without_zone(words[2]) if len(words) == 4 else ""


def find_first_frame(stream: bytes) -> tuple[bytes, bytes] | None:
    """Find the first frame, after `MAGIC`, in the bytes that a program has written so far.

    Returns:
        Its payload and the bytes after it, or None while it is incomplete.

    Raises:
        HostError: too many bytes have come without a frame, or the frame's header is not one of distrun's.
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
    """Check whether the launcher and the agent of a host are compatible.

    Args:
        info: the answer of the host's agent.
        python: the host's Python, for the remedy.
        version: the launcher's version of distrun.
        own: the launcher's version of Python.

    Returns:
        A remark for the user, or "".

    Raises:
        HostError: they are not.
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
    """Return the reason why the agent did not start on a host, and the remedy.

    Args:
        status: the exit status of the remote command, negative if unknown.
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
