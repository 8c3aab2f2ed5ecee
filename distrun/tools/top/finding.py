"""The jobs of this user on this machine: their launchers' sockets, by what the kernel lists."""

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
    """In seconds of the wall clock."""
    steps_per_second: float | None
    """None: nobody observes it at present, or its steps are not known."""
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
                about["command"] = " ".join(about["command"].split())  # it may have lines
                found.append(Job(**about, address=name))
        except (OSError, BootstrapError, ValueError, TypeError, KeyError):
            continue  # it has just ended, or is of another version, or of another user who has taken such a name
    return sorted(found, key=lambda one: one.since)


def the_job(wanted: str | None) -> Job:
    """Return the job that a word means: the beginning of its name, or its launcher's process id; None: the only one.

    Raises:
        UsageError: there is none, or there are several.
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
    """Return a connection with a launcher.

    Raises:
        OSError: there is none.
        BootstrapError: it is another user's.
    """
    connection = abstract_sockets.connect(socket.SOCK_STREAM, address)
    connection.settimeout(_TIMEOUT)
    return connection
