"""The ways to disturb a job of program.py: a rank or an agent is killed, a link cut, a host lost."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos import checks
from benchmarks.chaos.job import DEADLINE, Job
from benchmarks.hosts.namespaces import Host, Hosts
from benchmarks.support import processes

KEEPALIVE = 2.0
"""Seconds without a message after which a host counts as gone: what jobs are started with."""


@dataclass(frozen=True)
class Place:
    """The processes of the job on one host."""

    host: Host | None
    job: Job

    def processes(self, *words: str) -> list[psutil.Process]:
        """Return those whose command line has one of these words."""
        if self.host is None:
            family = psutil.Process(self.job.popen.pid).children(recursive=True)
        else:
            namespace = os.readlink(f"/proc/{self.host.pid}/ns/pid")
            family = [process for process in psutil.process_iter() if _namespace(process) == namespace]
        return [process for process in family if any(word in _command_line(process) for word in words)]


def _kill_rank(place: Place, hosts: Hosts | None, starts: list[checks.Fact], chance: random.Random) -> None:
    name = place.host.name if place.host else None
    here = {fact["pid"] for fact in starts if name in (None, fact["host"])}
    victims = [process for process in place.processes("chaos/program.py") if _own_number(process) in here]
    chance.choice(sorted(victims, key=lambda process: process.pid)).kill()


def _kill_agent(place: Place, *_: Any) -> None:
    for process in place.processes("distrun.runner.agent", "distrun-agent"):
        process.kill()


def _cut_link(place: Place, hosts: Hosts | None, *_: Any) -> None:
    with _cut(place, hosts):
        time.sleep(KEEPALIVE * 2)


def _lose_host(place: Place, hosts: Hosts | None, *_: Any) -> None:
    with _cut(place, hosts):
        for process in place.processes("chaos/program.py", "distrun.runner.agent", "distrun-agent"):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(KEEPALIVE * 2)


KINDS: dict[str, Callable[..., None]] = {
    "rank": _kill_rank,
    "agent": _kill_agent,
    "link": _cut_link,
    "host": _lose_host,
}


@contextlib.contextmanager
def _cut(place: Place, hosts: Hosts | None) -> Iterator[None]:
    assert hosts is not None
    assert place.host is not None
    link = ["nsenter", f"--target={hosts.login.pid}", "--net", "ip", "link", "set", "dev", f"port-{place.host.name}"]
    processes.run([*link, "down"], hosts.environ, DEADLINE)
    try:
        yield
    finally:
        processes.run([*link, "up"], hosts.environ, DEADLINE)


def _namespace(process: psutil.Process) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{process.pid}/ns/pid")
    return ""


def _command_line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _own_number(process: psutil.Process) -> int:
    """Return the process id that it has for itself: the last of those in its nested namespaces."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0
