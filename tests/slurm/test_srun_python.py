"""`srun python train.py` on a real Slurm, without distrun's launcher: ranks find and trust each other by themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_digits.py"
BESIDE_GLOO = Path(__file__).parents[1] / "frameworks" / "torch_distributed" / "programs" / "beside_gloo.py"
GROUP = '{"backend": "distrun", "init_method": "distrun://"}'
DEADLINE = 120.0  # seconds; four ranks that import torch on two busy cores take long
INIT = "import distrun, numpy; distrun.init();"
SUM = INIT + "print(distrun.topology(), distrun.allreduce(numpy.full(9, distrun.rank() + 1.0), op=distrun.Sum)[0])"
EXPECTED = {
    "rank 0(4), local 0(2), host 0(2) on alpha 10.0",
    "rank 1(4), local 1(2), host 0(2) on alpha 10.0",
    "rank 2(4), local 0(2), host 1(2) on beta 10.0",
    "rank 3(4), local 1(2), host 1(2) on beta 10.0",
}


@pytest.fixture
def srun(slurm):
    """Return a function that runs Python code by srun, on two nodes with two tasks each unless told otherwise."""

    def run(code, *options, **environ):
        where = options or ("--nodes=2", "--ntasks=4")
        return subprocess.run(
            [shutil.which("srun"), "--quiet", "--kill-on-bad-exit=1", *where, sys.executable, "-c", code],
            env={**slurm.environ, **environ},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )

    yield run
    slurm.assert_no_process()


@pytest.fixture
def lines(srun):
    """Return a function that runs Python code by srun to its good end; it returns the lines that ranks have printed."""

    def run(code, *options, **environ):
        done = srun(code, *options, **environ)
        assert done.returncode == 0, done.stderr
        return set(done.stdout.splitlines())

    return run


@pytest.mark.gate
def test_two_nodes_with_two_tasks_are_two_hosts_with_two_ranks(lines):
    assert lines(SUM) == EXPECTED


def test_one_task_per_node_and_uneven_nodes(lines):
    code = INIT + "print(distrun.rank(), distrun.allreduce(numpy.ones(9), op=distrun.Sum)[0])"
    assert lines(code, "--nodes=2", "--ntasks=2") == {"0 2.0", "1 2.0"}
    assert lines(code, "--nodes=2", "--ntasks=3") == {"0 3.0", "1 3.0", "2 3.0"}


def test_the_world_may_be_left_and_joined_again(lines):
    assert lines(INIT + "distrun.shutdown(); distrun.init(); distrun.shutdown();" + SUM) == EXPECTED


def test_two_jobs_at_once_do_not_meet(slurm, srun):
    command = ["srun", "--quiet", "--nodes=2", "--ntasks=4", sys.executable, "-c", SUM]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    jobs = [subprocess.Popen(command, env=slurm.environ, **pipes) for _ in range(2)]
    for job in jobs:
        out, err = job.communicate(timeout=DEADLINE)
        assert job.returncode == 0, err
        assert set(out.splitlines()) == EXPECTED


@pytest.mark.gate
def test_without_munge_a_secret_has_to_be_given(srun, lines):
    path = {"PATH": "/no/where"}
    done = srun(SUM, **path)
    assert done.returncode != 0
    assert "without munge its ranks have no secret to know one another by" in done.stderr
    done = srun(SUM, **path, DISTRUN_KEY="short")
    assert done.returncode != 0
    assert "DISTRUN_KEY has 5 characters: set it to at least 32" in done.stderr
    assert lines(SUM, **path, DISTRUN_KEY="0123456789abcdef" * 2) == EXPECTED


def test_one_node_needs_no_munge(lines):
    assert lines(SUM, "--nodes=1", "--ntasks=2", PATH="/no/where") == {
        "rank 0(2), local 0(2), host 0(1) on alpha 3.0",
        "rank 1(2), local 1(2), host 0(1) on alpha 3.0",
    }


@pytest.mark.gate
def test_a_killed_rank_is_an_error_of_the_others(srun):
    code = INIT + (
        "import os, signal\n"
        "try:\n"
        "    distrun.barrier()\n"  # everybody has left init(), where a rank that is gone is another error
        "    if distrun.rank() == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    distrun.allreduce(numpy.ones(9))\n"
        "except distrun.JobAbortedError as error: print(distrun.rank(), error)"
    )
    done = srun(code, "--nodes=2", "--ntasks=4", "--kill-on-bad-exit=0", "--wait=0")
    assert done.returncode == 137
    lines = done.stdout.splitlines()
    assert sorted(line[0] for line in lines) == ["0", "1", "2"]
    assert all("rank 3" in line for line in lines)


@pytest.mark.parametrize("launcher", ["srun", "distrun"])
def test_the_example_trains_with_the_same_weights_everywhere(slurm, allocation, launcher, tmp_path):
    pytest.importorskip("sklearn")
    start = {"srun": ["srun", "--quiet"], "distrun": [sys.executable, "-m", "distrun.runner", "--no-tag-output"]}[
        launcher
    ]
    done = subprocess.run(
        [*start, sys.executable, str(EXAMPLE), "--check", "--checkpoint", str(tmp_path / "digits.pt")],
        env={**allocation.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("... ok") == 3
    slurm.assert_no_process()


def test_ranks_of_distrun_on_two_nodes_compute_together(output):
    assert set(output("--no-tag-output", sys.executable, "-c", SUM).decode().splitlines()) == EXPECTED


def test_programs_of_torch_distributed_end_as_on_gloo(lines):
    pytest.importorskip("torch")
    given = f"sys.argv[1:] = [{GROUP!r}]; sys.path.insert(0, {str(BESIDE_GLOO.parent)!r})"
    run = f"import runpy, sys; {given}; runpy.run_path({str(BESIDE_GLOO)!r}, run_name='__main__')"
    equal = sorted(line for line in lines(run, OMP_NUM_THREADS="1") if line.startswith("EQUAL"))
    assert equal == ["EQUAL 0 4 alpha", "EQUAL 1 4 alpha", "EQUAL 2 4 beta", "EQUAL 3 4 beta"]
