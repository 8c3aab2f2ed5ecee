"""Ctrl-Z of a job on several hosts: its ranks stop there too, for longer than the keepalive, and go on with `fg`."""

from __future__ import annotations

import shlex
import sys

import pytest
from machines.namespaces import command_line
from machines.rank_programs import COUNTING
from shell import Shell, assert_stops_end_nothing, kill_all, wait_until

KEEPALIVE = 3
WORKING = COUNTING.format(elements=1_000_000, pause=0.01)


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
    shell.ask("\x1a", "Stopped")


def ranks(*hosts):
    return [process for host in hosts for process in host.processes() if command_line(process)[1:] == ["-c", WORKING]]


@pytest.mark.gate
def test_a_stop_that_is_longer_than_the_keepalive_ends_nothing(shell, alpha, beta):
    start(shell, "--stall-timeout", "6", "--stall-warning", "0")
    assert len(ranks(alpha, beta)) == 2
    assert_stops_end_nothing(shell, lambda: ranks(alpha, beta), KEEPALIVE)


def test_a_host_that_is_lost_meanwhile_is_reported_when_the_job_goes_on(shell, beta):
    start(shell)
    stop(shell)
    beta.agent().kill()
    shell.ask("fg\n", "distrun: the agent on beta")
    shell.ask("echo status $?\n", "status 137")


def test_a_link_that_is_cut_meanwhile_is_noticed_when_the_job_goes_on(shell, alpha, beta):
    start(shell)
    stop(shell)
    with beta.cut_off():
        shell.ask("fg\n", "$ ")  # the launcher notices it, or one of the ranks: who is first is not said
        shell.ask("echo status $?\n", "status 1")
        alpha.assert_gone()


def test_nothing_survives_a_stopped_launcher_that_is_killed(shell, alpha, beta):
    start(shell)
    stop(shell)
    (launcher,) = shell.family("distrun.runner")
    launcher.kill()
    alpha.assert_gone()
    beta.assert_gone()
    wait_until(lambda: not shell.family("distrun.runner"))
