"""Ranks without a launcher, so that nobody ends the others when one dies; and proof that nothing of them is left."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from running_distrun import Stream, await_gone, shared_memory
from shell import MARK as MARK, marked

DEADLINE = 120.0  # seconds; far more than anything takes, so that a busy machine fails no test


class Rank:
    """One rank, started without a launcher, so that nobody ends it when another one dies."""

    def __init__(self, program: Path, arguments: Sequence[str], environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.stdout = Stream(self.process.stdout)
        self.stderr = Stream(self.process.stderr)

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, text: str) -> None:
        """Write a line to the rank's stdin."""
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send a signal; after SIGSTOP, wait until the rank has stopped."""
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            self.await_stop()

    def await_stop(self) -> None:
        """Wait until a signal has stopped the rank."""
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def let_an_hour_pass(self, until: str = "") -> None:
        """Move the clock of a rank of faults.py, again and again until it has printed a text: it may not wait yet."""
        self.signal(signal.SIGUSR1)
        deadline = time.monotonic() + DEADLINE
        while not self.stdout.has(until, 0.2):
            assert time.monotonic() < deadline, f"{until!r} did not appear in {self.stdout.text[-5000:]!r}"
            self.signal(signal.SIGUSR1)

    def end(self) -> int:
        """Wait for the end; the exit status."""
        status = self.process.wait(DEADLINE)
        self.process.stdin.close()
        self.stdout.close()
        self.stderr.close()
        return status


@pytest.fixture
def ranks(
    request: pytest.FixtureRequest, marker: str, tmp_path: Path, contracts: Callable[..., Any]
) -> Iterator[Callable[..., list[Rank]]]:
    """Starts ranks of a program as children of the test: `size` on one host, or as many on each of `hosts`.

    The programs are in the folder `programs` that lies nearest to the test.
    """
    programs = next(folder / "programs" for folder in request.path.parents if (folder / "programs").is_dir())
    started: list[Rank] = []
    tmp = tmp_path / "tmp"
    tmp.mkdir()

    def start(program: str, *arguments: str, size: int = 2, hosts: Sequence[int] = (), **environ: str) -> list[Rank]:
        counts = hosts or (size,)
        for contract in contracts(counts):
            born = {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp), **contract.to_environ(), MARK: marker, **environ}
            started.append(Rank(programs / f"{program}.py", arguments, born))
        return started[-sum(counts) :]

    yield start
    for rank in started:
        if rank.process.poll() is None:
            rank.process.kill()
    for rank in started:
        rank.end()
    assert list(tmp.iterdir()) == []


# What ranks have come to ----------------------------------------------------------------------------------------------


def listening_ports(pid: int) -> list[int]:
    """Return where a rank listens, as soon as it does."""
    deadline = time.monotonic() + DEADLINE
    while True:
        sockets = psutil.Process(pid).net_connections("tcp")
        found = [each.laddr.port for each in sockets if each.status == psutil.CONN_LISTEN]
        if found:
            return found
        assert time.monotonic() < deadline, "it listens nowhere"


# Kills ----------------------------------------------------------------------------------------------------------------


def ready(ranks: Sequence[Rank]) -> Sequence[Rank]:
    """Wait until all ranks have come to the scenario; return them."""
    for rank in ranks:
        rank.stdout.wait_for("ready\n")
    return ranks


def named(rank: int, pid: int, host: int) -> str:
    """How a rank is named: by ranks of its host, which know it better, or by ranks of other hosts."""
    return rf"rank {rank} \(process {pid}( on host host{host})?(, [a-z ]+)?\)"


def kill(everybody: Sequence[Rank], scenario: str, victim: int) -> list[Rank]:
    """Kill a rank in a scenario of faults.py; return the others, when they have heard of it and have ended.

    No timeout is set, so that they can have heard of it in no other way than by its death.
    """
    ready(everybody)
    if scenario != "waiting":
        for rank in everybody if scenario == "working" else (everybody[0], everybody[-1]):
            rank.stdout.wait_for("big: done\n")
    everybody[victim].signal(signal.SIGKILL)
    everybody[victim].process.wait()
    survivors = [rank for place, rank in enumerate(everybody) if place != victim]
    for rank in survivors:
        assert rank.end() == 0, rank.stderr.text
        assert scenario != "waiting" or "second: JobAbortedError" in rank.stdout.text
    return survivors


def check_a_kill(
    ranks: Callable[..., list[Rank]], scenario: str, hosts: Sequence[int], victim: int, **environ: str
) -> None:
    """Kill a rank of a job over several hosts; all others name it."""
    everybody = ranks("faults", scenario, str(victim), hosts=hosts, **environ)
    host = next(host for host in range(len(hosts)) if victim < sum(hosts[: host + 1]))
    how = "(was killed by SIGKILL|is gone: its connection)"
    for rank in kill(everybody, scenario, victim):
        said = rank.stdout.text
        assert re.search(rf"JobAbortedError: .*{named(victim, everybody[victim].pid, host)} {how}", said), said


# Nothing is left ------------------------------------------------------------------------------------------------------


@pytest.fixture
def marker() -> Iterator[str]:
    """A mark for a test's processes, none of which outlives the test, nor does any name they made."""
    mark = secrets.token_hex(8)
    before = shared_memory()
    yield mark
    deadline = time.monotonic() + DEADLINE
    while left := marked(mark):  # a launcher may return a moment before what it launched has been collected
        gone, alive = psutil.wait_procs(left, timeout=5.0)
        assert gone or time.monotonic() < deadline, f"processes are left: {[process.cmdline() for process in alive]}"
    await_gone(shared_memory() - before)
