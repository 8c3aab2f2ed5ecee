"""The jobs of this user on this machine: their launchers' sockets, by what the kernel lists."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass

from distrun.errors import UsageError
from distrun.runner.observation.live.server import PREFIX, address, peer_uid

_PATIENCE = 5.0  # seconds for a launcher to answer
_LISTENS = 0x10000


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


def jobs() -> list[Job]:
    """Return all jobs, the oldest first."""
    found = []
    for name, pid in _listed():
        try:
            with connect(name, pid) as connection:
                connection.sendall(b'{"ask": "about"}\n')
                about = json.loads(connection.makefile("rb").readline())
                found.append(Job(**about | {"command": " ".join(about["command"].split())}))  # it may have lines
        except (OSError, ValueError, TypeError, KeyError):
            continue  # it has just ended, or is of another version
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


def connect(job: str, pid: int) -> socket.socket:
    """Return a connection with a launcher. Raises OSError where there is none, or it is another user's."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(_PATIENCE)
    try:
        connection.connect(address(job, pid))
        if peer_uid(connection) != os.getuid():
            raise PermissionError("it is another user's")
    except OSError:
        connection.close()
        raise
    return connection


def _listed() -> list[tuple[str, int]]:
    """Return names and process ids of the launchers of this user that listen in this network namespace."""
    found = []
    with open("/proc/net/unix", encoding="ascii", errors="replace") as table:
        for line in table:
            fields = line.split()
            if len(fields) < 8 or not fields[7].startswith(f"@{PREFIX}/{os.getuid()}/"):
                continue
            name, _, pid = fields[7].split("/", 2)[2].rpartition("/")
            if int(fields[3], 16) & _LISTENS and pid.isdecimal():
                found.append((name, int(pid)))
    return found
