"""The jobs of this user on this machine, found by their launchers' sockets, which the kernel lists."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass

from distrun.errors import BootstrapError, UsageError
from distrun.host import abstract_sockets
from distrun.runner.observation.live.server import prefix

_TIMEOUT = 5.0  # seconds for a launcher to answer


@dataclass(frozen=True)
class Job:
    """A job that is running."""

    job: str
    pid: int
    """The process id of its launcher."""
    ranks: int
    hosts: list[str]
    command: str
    since: float
    """The time of its start, in seconds of the wall clock."""
    steps_per_second: float | None
    """None = it is not being observed at present, or its steps are not known."""
    address: bytes = b""
    """The address of its launcher's socket."""


def jobs() -> list[Job]:
    """Return all jobs, the oldest first."""
    found = []
    for name in abstract_sockets.listening(prefix()):
        try:
            with connect(name) as connection:
                connection.sendall(b'{"ask": "about"}\n')
                about = json.loads(connection.makefile("rb").readline())
                about["command"] = " ".join(about["command"].split())  # it may contain line breaks
                found.append(Job(**about, address=name))
        except (OSError, BootstrapError, ValueError, TypeError, KeyError):
            continue  # it has just ended, or has another version, or another user has taken such a name
    return sorted(found, key=lambda one: one.since)


def the_job(wanted: str | None) -> Job:
    """Return the job whose name begins with `wanted`, or whose launcher has this process id. None = the only job.

    Raises:
        UsageError: there is no such job, or there are several.
    """
    there = jobs()
    if not there:
        raise UsageError(
            "no job of yours runs on this machine: start one with distrun, or look on the host of its launcher"
        )
    meant = [one for one in there if wanted is None or one.job.startswith(wanted) or str(one.pid) == wanted]
    if len(meant) == 1:
        return meant[0]
    names = ", ".join(f"{one.job[:8]} ({one.command[:40]})" for one in there)
    if not meant:
        raise UsageError(f"no job is called {wanted!r}: there are {names}; see distrun ps")
    raise UsageError(
        f"{len(meant)} jobs may be meant: say which, by its name or process id as distrun ps lists them: {names}"
    )


def connect(address: bytes) -> socket.socket:
    """Connect to a launcher, and return the connection.

    Raises:
        OSError: no launcher listens there.
        BootstrapError: the launcher is another user's.
    """
    connection = abstract_sockets.connect(socket.SOCK_STREAM, address)
    connection.settimeout(_TIMEOUT)
    return connection
