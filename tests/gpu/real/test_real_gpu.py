"""The collectives on a real GPU, every one with every dtype.

Ranks share a real GPU if there is only one, which takes NCCL 2.30; with an older one what is tested is the way through
the hosts' memory.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distrun.host.gpus import visible_gpus

PROGRAMS = Path(__file__).parents[1] / "programs"
SIZES = ("1", "1000", "262147", "4194304")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not visible_gpus(os.environ), reason="there is no NVIDIA GPU")]


@pytest.fixture
def real_job(run_on_hosts):
    """Return a function that runs a program on ranks of this host, without a launcher, which would end all if one is
    killed."""

    def run(program, size, *arguments, fail=False, **environ):
        environ = {**os.environ, "DISTRUN_SHARE_GPUS": "1", "DISTRUN_STALL_TIMEOUT": "60", **environ}
        hosts = (size,) if isinstance(size, int) else size
        done = run_on_hosts([sys.executable, str(PROGRAMS / program), *arguments], hosts, environ)
        assert isinstance(done, subprocess.CompletedProcess)
        assert (done.returncode != 0) is fail, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr[-10000:]}"
        return done.stdout

    return run


@pytest.mark.parametrize("size", [1, 2])
def test_every_collective_with_every_dtype(real_job, size):
    said = real_job("gpu_collectives.py", size, *SIZES)
    assert said.count("results are right") == size


def test_a_rank_that_is_killed_inside_an_allreduce(real_job):
    assert "rank 0 was told" in real_job("gpu_death.py", 2, fail=True)


@pytest.mark.parametrize("wire", ["int8", "int4"])
@pytest.mark.parametrize(("size", "arguments"), [((1, 1, 1), ["exact"]), ((2, 2), [])], ids=str)
def test_reductions_travel_quantised_between_hosts(real_job, size, arguments, wire):
    environ = {"DISTRUN_WIRE_DTYPE": wire, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}  # the hosts are one in truth
    said = real_job("gpu_quantised.py", size, *arguments, **environ)
    assert said.count("fine") == sum(size)
