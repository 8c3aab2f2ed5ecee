"""Faults of ranks on other hosts: how the job ends, and that nothing is left of it afterwards."""

from __future__ import annotations

import signal

import psutil
import pytest
from running_distrun import DEADLINE

SLEEP = "import time; print('ready', flush=True); time.sleep(1000)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN);"
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('daemon', flush=True)
        time.sleep(1000)
    os._exit(0)
os.wait()
"""


@pytest.mark.gate
def test_a_killed_remote_rank_is_reported(distrun, python):
    code = (
        "import os, signal, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1000)"
    )
    job = distrun("-H", "alpha:1,beta:1", *python(code))
    assert job.wait() == 137
    assert b"distrun: rank 1 on beta (pid " in job.stderr.data
    assert b"was killed by SIGKILL" in job.stderr.data


def test_the_exit_code_and_last_words_come_from_the_other_host(distrun, python):
    fail = "sys.stderr.write('alas\\n'); sys.exit(42)"
    code = f"import os, sys, time\nif os.environ['RANK'] == '0': {fail}\ntime.sleep(1000)"
    job = distrun("-H", "alpha:1,beta:1", *python(code))
    assert job.wait() == 42
    assert job.stderr.data.endswith(b"    alas\n")


@pytest.mark.gate
def test_a_signal_to_distrun_ends_remote_ranks(distrun, python):
    job = distrun("-H", "alpha:1,beta:1", *python(SLEEP))
    job.stdout.wait_for(b"ready", 2)
    job.process.terminate()
    assert job.wait() == 143


@pytest.mark.gate
def test_the_sigkill_of_a_remote_agent_is_reported_and_leaves_nothing(distrun, python, alpha):
    job = distrun("-H", "alpha:2,beta:1", *python(DAEMON + SLEEP))
    job.stdout.wait_for(b"ready", 3)
    agent = alpha.agent()
    agent.kill()
    assert job.wait() == 137
    assert f"the agent on alpha (pid {agent.pid}) was killed".encode() in job.stderr.data


@pytest.mark.gate
def test_stubborn_remote_ranks_and_their_daemons_are_gone_after_the_sigkill_of_distrun(distrun, python, alpha, beta):
    job = distrun("-H", "alpha:2,beta:1", *python(STUBBORN + DAEMON + SLEEP))
    job.stdout.wait_for(b"ready", 3)
    left = [*alpha.processes(), *beta.processes()]
    assert len(left) >= 8
    job.process.kill()
    assert psutil.wait_procs(left, timeout=DEADLINE)[1] == []
    assert job.wait() == -signal.SIGKILL


@pytest.mark.gate
def test_a_link_that_is_cut_is_noticed_at_both_ends(distrun, python, alpha):
    job = distrun("-H", "alpha:1,beta:1", "--keepalive", "5", *python(SLEEP))
    job.stdout.wait_for(b"ready", 2)
    assert len(alpha.processes()) == 3  # the agent, its guard and the rank
    alpha.cut()
    try:
        assert job.wait() == 1
        assert b"nothing was heard from alpha for 5 s" in job.stderr.data
        alpha.assert_gone()
    finally:
        alpha.mend()


def test_a_cut_behind_the_jump_host_is_noticed_too(distrun, python, home, beta):
    home.config.write_text(home.config.read_text().replace("Host beta\n", "Host beta\n  ProxyJump alpha\n"))
    job = distrun("-H", "beta:1", "--keepalive", "5", *python(SLEEP))
    job.stdout.wait_for(b"ready")
    beta.cut()
    try:
        assert job.wait() == 1
        assert b"nothing was heard from beta" in job.stderr.data
        beta.assert_gone()
    finally:
        beta.mend()


def test_an_idle_job_outlives_the_keepalive(distrun, python):
    code = "import time; print('ready', flush=True); time.sleep(10)"  # the rank is silent, the connection must not be
    job = distrun("-H", "alpha:1", "--keepalive", "5", *python(code))
    assert job.wait() == 0, job.stderr.data


def test_an_sshd_that_ends_is_a_connection_that_is_gone(distrun, python, alpha):
    job = distrun("-H", "alpha:1", *python(SLEEP))
    job.stdout.wait_for(b"ready")
    agent = alpha.agent()
    agent.parent().kill()
    assert job.wait() == 1
    assert b"the agent on alpha" in job.stderr.data
    assert b"the SSH connection is gone" in job.stderr.data


@pytest.mark.gate
def test_an_agent_that_hangs_is_ended_with_its_ranks(distrun, python, alpha):
    """The connection lives, but nobody answers: a second program on it ends the agent and its ranks."""
    job = distrun("-H", "alpha:1,beta:1", "--keepalive", "5", *python(SLEEP))
    job.stdout.wait_for(b"ready", 2)
    alpha.agent().suspend()
    assert job.wait() == 1
    assert b"nothing was heard from alpha for 5 s" in job.stderr.data


def test_a_launcher_that_is_stopped_is_given_up(distrun, python, alpha):
    job = distrun("-H", "alpha:1", "--keepalive", "5", *python(SLEEP))
    job.stdout.wait_for(b"ready")
    job.process.send_signal(signal.SIGSTOP)
    alpha.assert_gone()
    job.process.send_signal(signal.SIGCONT)
    assert job.wait() == 1


def test_who_waits_in_init_fails_at_once_when_a_rank_of_another_host_has_ended_without_calling_it(distrun, python):
    code = "import os, sys, distrun\nif os.environ['RANK'] == '1': sys.exit(0)\ndistrun.init()"
    job = distrun("-H", "alpha:1,beta:1", "--start-timeout", "1000", *python(code))
    assert job.wait() == 1
    assert b"distrun.errors.BootstrapError: rank 1 on beta (pid " in job.stderr.data
    assert b") exited with code 0 before it joined the others in init()\n" in job.stderr.data
