"""Forks of a process: what they leave, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from distrun.host.forks import Fork

pytestmark = pytest.mark.gate

DEADLINE = 60.0  # seconds


def forked(what):
    """Return a fork in which `what` was called with it, before it ended."""
    fork = Fork()
    if fork.is_here:
        status = 1
        with suppress(BaseException):
            status = what(fork) or 0
        os._exit(status)
    return fork


def test_a_fork_leaves_a_result_of_any_length():
    descriptors = os.listdir("/proc/self/fd")
    assert forked(lambda fork: fork.leave(b"a" * 3_000_000)).result(DEADLINE) == b"a" * 3_000_000
    assert forked(lambda fork: None).result(DEADLINE) == b""
    assert os.listdir("/proc/self/fd") == descriptors


def test_a_fork_that_fails_or_is_killed_has_no_result():
    def fail(fork):
        fork.leave(b"half")
        return 3

    def be_killed(fork):
        fork.leave(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(fail).result(DEADLINE) == b""
    assert forked(be_killed).result(DEADLINE) == b""


def test_a_fork_is_ended_when_its_time_is_over_with_what_it_has_started():
    reading, writing = os.pipe()

    def wait(fork):
        os.write(writing, subprocess.Popen(["sleep", "600"]).pid.to_bytes(4, "little"))
        time.sleep(600)

    fork = forked(wait)
    started = psutil.Process(int.from_bytes(os.read(reading, 4), "little"))
    assert fork.result(0.0) == b""
    assert fork.end() == -1  # it was ended before
    with suppress(psutil.NoSuchProcess):
        started.wait(DEADLINE)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_fork_ends_with_the_process_that_has_forked_it(signum):
    program = "\n".join(
        (
            "import time; from distrun.host.forks import Fork; fork = Fork()",
            "if not fork.is_here: print(fork._pid, flush=True)",
            "time.sleep(600)",
        )
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            fork = psutil.Process(int(process.stdout.readline()))
        finally:
            process.send_signal(signum)
        with suppress(psutil.NoSuchProcess):
            fork.wait(DEADLINE)
