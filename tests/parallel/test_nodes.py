"""Ranks that two launchers of one job start, each on a node of its own as far as distrun is concerned."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from distrun.host.endpoints import PORTS, free_ports

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE = 240.0  # seconds; far more than anything takes


class Launcher:
    """One of the two, through its command line."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
        )

    def wait_for(self, text: str) -> None:
        """Wait until a line of its output contains a text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line:
                return
        raise AssertionError(f"{text!r} was never printed; {self.process.communicate()[1]}")

    def ports(self) -> set[int]:
        """The ports where it, or what it has started, listens."""
        family = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        found = [item for process in family for item in process.net_connections("inet")]
        return {item.laddr.port for item in found if item.status == psutil.CONN_LISTEN}

    def end(self) -> int:
        """Wait for its end; returns its exit status."""
        self.process.communicate(timeout=DEADLINE)
        return self.process.returncode


@pytest.fixture
def two():
    """Starts two launchers, with one and two ranks, and waits until these have met if all is well."""
    started = []

    def start(*options: str, is_well: bool = True, **environ: str) -> list[Launcher]:
        rendezvous = ("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{_free_range(1, 12000)}", *options)
        script = (sys.executable, str(PROGRAMS / "stays.py"))
        for ranks in ("1", "2"):
            started.append(Launcher("distrun.runner", *rendezvous, "--nproc-per-node", ranks, *script, **environ))
        for launcher in started if is_well else ():
            launcher.wait_for("sum 3 of 3")
        return started

    yield start
    for launcher in started:
        launcher.process.kill()
        launcher.process.wait(DEADLINE)


def test_ranks_of_two_launchers_are_one_job(two):
    launchers = two()
    launchers[0].process.send_signal(signal.SIGINT)
    assert [launcher.end() for launcher in launchers] == [130, 130]


@pytest.mark.gate
def test_a_rank_that_is_killed_is_what_all_launchers_report(two):
    launchers = two()
    family = psutil.Process(launchers[1].process.pid).children(recursive=True)
    next(item for item in family if item.cmdline()[-1].endswith("stays.py")).kill()
    for launcher in launchers:
        _, report = launcher.process.communicate(timeout=DEADLINE)
        assert launcher.process.returncode == 137
        assert "was killed by SIGKILL" in report


@pytest.mark.gate
def test_everything_listens_at_the_ports_that_are_allowed(two):
    first = _free_range(20)
    launchers = two("--ports", f"{first}-{first + 19}")
    endpoint = next(int(word.rpartition(":")[2]) for word in launchers[0].process.args if word.startswith("127.0.0.1:"))
    ports = set.union(*(launcher.ports() for launcher in launchers)) - {endpoint}
    assert ports <= set(range(first, first + 20))
    launchers[0].process.send_signal(signal.SIGINT)
    for launcher in launchers:
        launcher.end()


def test_too_few_ports_are_refused_with_the_range_and_the_remedy(two):
    taken = free_ports(1)[0]
    launchers = two(is_well=False, **{PORTS: f"{taken}-{taken}"})
    reports = [launcher.process.communicate(timeout=DEADLINE)[1] for launcher in launchers]
    assert any(f"no port of {taken}-{taken} is free on " in report for report in reports)


def _free_range(count: int, lowest: int = 20000) -> int:
    """Return the first of `count` ports in a row that are free, below the ones that the system gives away."""
    for first in range(lowest + os.getpid() % 7000, lowest + 8000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("", port))
            return first
        except OSError:
            continue
    raise AssertionError("no range of ports is free")
