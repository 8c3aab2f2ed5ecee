"""Faults of ranks on other hosts: how the job ends, and that nothing is left of it afterwards."""

from __future__ import annotations

import signal

import psutil
import pytest
from machines.rank_programs import DAEMON, SLEEP, STUBBORN
from running_distrun import DEADLINE


@pytest.mark.gate
def test_a_killed_remote_rank_is_reported(distrun, python):
    code = (
        "import os, signal, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1000)"
    )
    said = distrun("-H", "alpha:1,beta:1", *python(code)).ended(137)
    assert b"distrun: rank 1 on beta (pid " in said
    assert b"was killed by SIGKILL" in said


def test_the_exit_code_and_last_words_come_from_the_other_host(distrun, python):
    fail = "sys.stderr.write('alas\\n'); sys.exit(42)"
    code = f"import os, sys, time\nif os.environ['RANK'] == '0': {fail}\ntime.sleep(1000)"
    said = distrun("-H", "alpha:1,beta:1", *python(code)).ended(42)
    assert said.endswith(b"    alas\n")


@pytest.mark.gate
def test_a_signal_to_distrun_ends_remote_ranks(ready):
    job = ready(2, "-H", "alpha:1,beta:1")
    job.process.terminate()
    assert job.wait() == 143


@pytest.mark.gate
def test_the_sigkill_of_a_remote_agent_is_reported_and_leaves_nothing(ready, alpha):
    job = ready(3, "-H", "alpha:2,beta:1", code=DAEMON + SLEEP)
    agent = alpha.agent()
    agent.kill()
    assert f"the agent on alpha (pid {agent.pid}) was killed".encode() in job.ended(137)


@pytest.mark.gate
def test_stubborn_remote_ranks_and_their_daemons_are_gone_after_the_sigkill_of_distrun(ready, alpha, beta):
    job = ready(3, "-H", "alpha:2,beta:1", code=STUBBORN + DAEMON + SLEEP)
    left = [*alpha.processes(), *beta.processes()]
    assert len(left) >= 8
    job.process.kill()
    assert psutil.wait_procs(left, timeout=DEADLINE)[1] == []
    assert job.wait() == -signal.SIGKILL


@pytest.mark.gate
def test_a_link_that_is_cut_is_noticed_at_both_ends(ready, alpha):
    job = ready(2, "-H", "alpha:1,beta:1", "--keepalive", "5")
    assert len(alpha.processes()) == 3  # the agent, its guard and the rank
    with alpha.cut_off():
        assert b"nothing was heard from alpha for 5 s" in job.ended(1)
        alpha.assert_gone()


def test_a_cut_behind_the_jump_host_is_noticed_too(ready, home, beta):
    home.config.write_text(home.config.read_text().replace("Host beta\n", "Host beta\n  ProxyJump alpha\n"))
    job = ready(1, "-H", "beta:1", "--keepalive", "5")
    with beta.cut_off():
        assert b"nothing was heard from beta" in job.ended(1)
        beta.assert_gone()


def test_an_idle_job_outlives_the_keepalive(distrun, python):
    code = "import time; print('ready', flush=True); time.sleep(10)"  # the rank is silent, the connection must not be
    distrun("-H", "alpha:1", "--keepalive", "5", *python(code)).ended(0)


def test_an_sshd_that_ends_is_a_connection_that_is_gone(ready, alpha):
    job = ready(1, "-H", "alpha:1")
    agent = alpha.agent()
    agent.parent().kill()
    assert job.wait() == 1
    assert b"the agent on alpha" in job.stderr.data
    assert b"the SSH connection is gone" in job.stderr.data


@pytest.mark.gate
def test_an_agent_that_hangs_is_ended_with_its_ranks(ready, alpha):
    """The connection lives, but nobody answers: a second program on it ends the agent and its ranks."""
    job = ready(2, "-H", "alpha:1,beta:1", "--keepalive", "5")
    alpha.agent().suspend()
    assert b"nothing was heard from alpha for 5 s" in job.ended(1)


def test_a_launcher_that_is_stopped_is_given_up(ready, alpha):
    job = ready(1, "-H", "alpha:1", "--keepalive", "5")
    job.process.send_signal(signal.SIGSTOP)
    alpha.assert_gone()
    job.process.send_signal(signal.SIGCONT)
    assert job.wait() == 1


def test_who_waits_in_init_fails_at_once_when_a_rank_of_another_host_has_ended_without_calling_it(distrun, python):
    code = "import os, sys, distrun\nif os.environ['RANK'] == '1': sys.exit(0)\ndistrun.init()"
    said = distrun("-H", "alpha:1,beta:1", "--start-timeout", "1000", *python(code)).ended(1)
    assert b"distrun.errors.BootstrapError: rank 1 on beta (pid " in said
    assert b") exited with code 0 before it joined the others in init()\n" in said
