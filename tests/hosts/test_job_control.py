"""Ctrl-Z of a job on several hosts: its ranks stop there too, for longer than the keepalive, and go on with `fg`."""

from __future__ import annotations

import shlex
import sys
import time

import pytest
from machines.namespaces import command_line
from shell import Shell, are_stopped, kill_all, wait_until

KEEPALIVE = 3
WORKING = """
import itertools, time, numpy as np, distrun
distrun.init()
tensor = distrun.empty(1_000_000, np.float32)
for number in itertools.count():
    tensor[:] = distrun.rank() + number
    distrun.allreduce_(tensor, "big", distrun.Sum)
    assert (tensor == 2 * number + 1).all()
    print("step", number, flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def shell(home, alpha, beta):
    made = Shell(HOME=str(home.directory), SSH_AUTH_SOCK="")
    try:
        yield made
        for host in (alpha, beta):
            host.assert_gone()
    finally:
        made.close()
        kill_all([*alpha.processes(), *beta.processes()])


def start(shell, *options):
    words = ["-H", "alpha:1,beta:1", "--keepalive", str(KEEPALIVE), *options, sys.executable, "-c", WORKING]
    shell.type(shlex.join([sys.executable, "-m", "distrun.runner", *words]) + "\n")
    shell.wait_for("[1] step 5")


def stop(shell):
    before = shell.type("\x1a")
    shell.wait_for("Stopped", before)


def ranks(*hosts):
    return [process for host in hosts for process in host.processes() if command_line(process)[1:] == ["-c", WORKING]]


@pytest.mark.gate
def test_a_stop_that_is_longer_than_the_keepalive_ends_nothing(shell, alpha, beta):
    start(shell, "--stall-timeout", "6", "--stall-warning", "0")
    for _ in range(2):
        stop(shell)
        assert len(ranks(alpha, beta)) == 2
        wait_until(lambda: are_stopped(ranks(alpha, beta)))
        time.sleep(2.5 * KEEPALIVE)  # there is nothing to wait for
        before = shell.type("fg\n")
        shell.wait_for("[0] step", shell.wait_for("[1] step", before))
        time.sleep(1.5 * KEEPALIVE)  # the keepalives are there again
        assert len(ranks(alpha, beta)) == 2
    before = shell.type("\x03")
    shell.wait_for("$ ", before)
    before = shell.type("echo status $?\n")
    shell.wait_for("status 130", before)


def test_a_host_that_is_lost_meanwhile_is_reported_when_the_job_goes_on(shell, beta):
    start(shell)
    stop(shell)
    beta.agent().kill()
    before = shell.type("fg\n")
    shell.wait_for("distrun: the agent on beta", before)
    before = shell.type("echo status $?\n")
    shell.wait_for("status 137", before)


def test_a_link_that_is_cut_meanwhile_is_noticed_when_the_job_goes_on(shell, alpha, beta):
    start(shell)
    stop(shell)
    with beta.cut_off():
        before = shell.type("fg\n")
        shell.wait_for("$ ", before)  # the launcher notices it, or one of the ranks: who is first is not said
        before = shell.type("echo status $?\n")
        shell.wait_for("status 1", before)
        alpha.assert_gone()


def test_nothing_survives_a_stopped_launcher_that_is_killed(shell, alpha, beta):
    start(shell)
    stop(shell)
    (launcher,) = shell.family("distrun.runner")
    launcher.kill()
    alpha.assert_gone()
    beta.assert_gone()
    wait_until(lambda: not shell.family("distrun.runner"))
