"""Sweeps that are interrupted or lose something: nothing is left, and nothing that was done is lost."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from session.tiers import one_in_gate
from shell import wait_until

ENDLESS = """
import subprocess, sys, time
if sys.argv[1] == "--seed=0":
    print("loss: 0.5", flush=True)
    sys.exit()
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("loss: 1", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def endless(sweep):
    """Starts a sweep of which one trial ends, and two run until they are ended, each with a process of its own."""

    def start(*arguments):
        run = sweep(*("--seeds", "4", "--metric", "loss", "-H", "localhost:2"), *arguments, script=ENDLESS)
        run.stderr.wait_for(b"trial 0 complete")
        wait_until(lambda: len(sleeping(run)) == 2)
        return run

    return start


def sleeping(run):
    return where(run, lambda process: process.name() == "sleep")


def ranks(run):
    return where(run, lambda process: "DISTRUN_RANK" in process.environ() and process.name() != "sleep")


def spares(run):
    return where(run, lambda process: any(word.endswith("/spare.py") for word in process.cmdline()))


def where(run, is_wanted):
    found = []
    for process in run.family():
        try:
            if is_wanted(process):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.gate
@pytest.mark.parametrize("signum", one_in_gate(signal.SIGINT, signal.SIGTERM))
def test_a_signal_ends_all_and_the_sweep_can_be_resumed(endless, sweep, signum):
    run = endless()
    run.process.send_signal(signum)
    assert run.wait() == 128 + signum
    run.assert_gone()
    assert run.results.states == ["complete", "running", "running"]
    assert b"--resume" in run.stderr.data
    assert b"1 complete, 2 cut short; " in run.stderr.data
    assert run.results.best["value"] == 0.5
    said = sweep("--resume", str(run.results.folder), "-H", "localhost:2", "--timeout", "1").ended(0)
    assert b"the 1 s of --timeout are over" in said
    assert b"trial 0" not in said.replace(b"the best is trial 0", b"")


@pytest.mark.gate
def test_a_sweep_is_not_resumed_beside_itself_and_leaves_only_its_record_when_it_is_killed(endless, sweep):
    run = endless()
    before = (run.results.folder / "trials.jsonl").read_bytes()
    other = sweep("--resume", str(run.results.folder), "-H", "localhost:2")
    assert other.wait() == 2
    assert b"is in use: another distrun sweep writes its results there" in other.stderr.data
    assert other.family() == []
    assert (run.results.folder / "trials.jsonl").read_bytes() == before
    family = run.family()
    run.process.kill()
    run.wait()
    assert run.results.states == ["complete", "running", "running"]
    # At once: nothing that the killed one has left keeps it away.
    sweep("--resume", str(run.results.folder), "-H", "localhost:2", "--timeout", "1").ended(0)
    assert psutil.wait_procs(family, timeout=60)[1] == []


@pytest.mark.gate
def test_an_agent_that_is_killed_is_replaced_and_its_trials_run_again(endless):
    run = endless()
    before = ranks(run) + sleeping(run)
    run.agent().kill()
    run.stderr.wait_for(b"its trials are tried again")
    assert psutil.wait_procs(before, timeout=60)[1] == []
    wait_until(lambda: len(sleeping(run)) == 2)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130


def test_a_rank_that_is_killed_is_the_failure_of_its_trial_only(endless):
    run = endless()
    victim = ranks(run)[0]
    victim.kill()
    run.stderr.wait_for(b"was killed by SIGKILL")
    run.stderr.wait_for_match(r"trial \d failed")
    wait_until(lambda: len(sleeping(run)) == 2)  # the next trial runs, and nothing is left of the one that failed
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert run.results.states == ["complete", "failed", "running", "running"]


def test_a_trial_whose_spare_had_died_unseen_is_started_again_without_it(sweep, tmp_path):
    go = tmp_path / "go"
    os.mkfifo(go)
    script = f"""
import sys
import distrun
distrun.report(1.0)
print("spare.py" in open("/proc/self/cmdline").read())
sys.argv[1] == "--seed=0" and open({str(go)!r}).read()
"""
    run = sweep("--seeds", "2", "-H", "localhost:1", script=script)
    with open(go, "w"):
        (first,) = ranks(run)
        wait_until(lambda: spares(run))
        (spare,) = spares(run)
        run.process.send_signal(signal.SIGSTOP)  # so that it hears of both ends together, in their order
    assert psutil.wait_procs([first], timeout=60)[1] == []
    spare.kill()
    assert psutil.wait_procs([spare], timeout=60)[1] == []
    run.process.send_signal(signal.SIGCONT)
    assert run.wait() == 0
    assert b"trial 1 is started again: the process on localhost that waited for it had died" in run.stderr.data
    assert run.results.states == ["complete", "complete"]
    assert run.results.log(1) == "False\n"
