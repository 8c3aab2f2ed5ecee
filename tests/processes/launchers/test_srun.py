"""Agents started by srun, played by a script that starts them here. tests/slurm has the real one."""

from __future__ import annotations

import os

import psutil
import pytest

from distrun.runner.hosts.job_steps import JobStep, JobSteps, srun_command
from distrun.runner.shipping.delivery import Opening

pytestmark = pytest.mark.gate

SLURM = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"}
SRUN = """
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


def test_ranks_of_all_nodes_run(distrun, tools):
    tools(srun=SRUN)
    job = distrun("sh", "-c", "echo $RANK $LOCAL_RANK $DISTRUN_HOSTNAME", **SLURM)
    assert job.wait() == 0, job.stderr.data
    assert set(job.stdout.data.splitlines()) == {b"[0] 0 0 n1", b"[1] 1 1 n1", b"[2] 2 0 n2"}
    assert b"distrun: hosts of Slurm job 17: n1:2,n2:1\n" in job.stderr.data


def test_every_srun_names_its_node_and_has_no_options_but_ours(distrun, tools, tmp_path):
    log = tmp_path / "log"
    tools(srun=f'echo "$SLURM_MEM_PER_CPU $SLURM_CONF $KEPT $*" >> {log}{SRUN}')
    distrun("true", **SLURM, SLURM_MEM_PER_CPU="10", SLURM_CONF="/c", KEPT="kept").ended(0)
    first, second = sorted(line for line in log.read_text().splitlines() if "--jobid" in line)
    assert first.startswith(" /c kept --jobid=17 ")
    assert "--nodelist=n1 " in first
    assert "--nodelist=n2 " in second


def test_what_srun_says_is_the_reason(distrun, tools):
    tools(srun="echo 'srun: error: Unable to create step for job 17: Invalid node name specified' >&2; exit 1")
    said = distrun("true", **SLURM).ended(2)
    assert b"n1: srun cannot start the agent: Unable to create step for job 17: Invalid node name" in said
    assert b"Traceback" not in said


def test_an_srun_that_waits_for_nodes_is_told_and_ended(distrun, tools):
    tools(srun="echo 'srun: Job 17 step creation temporarily disabled, retrying' >&2; exec sleep 1000")
    said = distrun("--start-timeout", "1", "true", **SLURM).ended(2)
    assert b"host n1 cannot be used" in said or b"2 hosts cannot be used" in said


def test_an_interrupted_launch_ends_the_sruns_that_are_starting(distrun, tools, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    tools(srun=f"echo > {fifo}; exec sleep 1000")
    job = distrun("true", **SLURM)
    with open(os.open(fifo, os.O_RDWR), "rb", buffering=0) as began:
        lines = b""
        while lines.count(b"\n") < 2:
            lines += began.read(10)
    job.process.terminate()
    assert job.wait() == 143
    assert psutil.wait_procs(job.family(), timeout=60)[1] == []


def test_the_command_line_has_options_of_slurm_and_a_program():
    words = srun_command("17", "n1", "/bin/python3", "distrun.runner.agent", "pass")
    options = [word for word in words if word.startswith("--")]
    assert words[: 1 + len(options)] == ["srun", *options]
    assert {"--jobid=17", "--nodelist=n1", "--overlap", "--unbuffered", "--cpu-bind=none"} < set(options)
    assert words[-4:] == ["/bin/python3", "-c", "pass", "distrun.runner.agent"]


def test_the_reported_error_is_that_of_slurm_that_say_why(tmp_path):
    said = tmp_path / "said"
    said.write_text(
        "srun: Job step aborted: Waiting up to 4 seconds for job step to finish.\n"
        "a rank said this\n"
        "slurmstepd-n1: error: *** STEP 17.1 ON n1 CANCELLED AT 2026-11-21T16:10:49 DUE TO TIME LIMIT ***\n"
        "srun: error: n1: task 0: Killed\n"
    )
    step = JobStep(["sh", "-c", f"cat {said} >&2"], os.environ, "python")
    assert step.wait() == 0
    assert step.slurm_error() == "STEP 17.1 ON n1 CANCELLED AT 2026-11-21T16:10:49 DUE TO TIME LIMIT"
    step.release()


def test_nothing_is_started_after_the_end():
    steps = JobSteps(SLURM)
    steps.close()
    with pytest.raises(Exception, match="the launch was given up"):
        steps.start("n1", "python", "distrun.runner.agent", Opening("pass", b""))
