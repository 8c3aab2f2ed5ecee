"""Elastic jobs within an allocation of a real Slurm, whose nodes fail and come back."""

from __future__ import annotations

import re
import sys

import pytest
from elastic_training import Training, done, kill
from shell import lives

# Saves its second step, and waits for its end in the first run; makes one more step in the second.
CHECKPOINTS = """
import os, sys, time
import distrun, numpy
from distrun.checkpoint import CheckpointManager

distrun.init()
checkpoints = CheckpointManager(sys.argv[1])
start = checkpoints.restore(weights=numpy.zeros(100))
weights = start.weights
print("begin", distrun.restart_count(), distrun.rank(), start.step, flush=True)
for step in range(start.step, 3):
    if step == 2 and distrun.restart_count() == 0:
        checkpoints.wait()
        distrun.barrier()
        print("saved", flush=True)
        time.sleep(1000)
    weights += distrun.allreduce(numpy.ones(100), op=distrun.Sum)
    checkpoints.save(step + 1, weights=weights)
print("end", distrun.rank(), weights[0], flush=True)
"""


@pytest.fixture
def training(distrun, tmp_path):
    return lambda *arguments, **more: Training(distrun, tmp_path, *arguments, **more)


def test_a_rank_that_is_killed_is_replaced(training):
    trained = training("--elastic")
    before = trained.wait_for_ranks(4)
    kill(before[3])
    after = trained.wait_for_ranks(4)
    assert len(set(before.values()) & set(after.values())) == 3
    assert len(done(trained.finish())) == 4


@pytest.mark.gate
def test_the_ranks_of_an_agent_that_is_killed_start_again_in_a_new_step(training, slurm):
    trained = training("--elastic")
    before = trained.wait_for_ranks(4)
    slurm.agents()["beta"].kill()
    after = trained.wait_for_ranks(4)
    assert len(set(before.values()) & set(after.values())) == 2
    assert len(done(trained.finish())) == 4


def test_a_node_that_is_cut_off_is_left_out_until_it_is_back(training, slurm):
    trained = training("--min-np", "2", "--keepalive", "5")
    trained.wait_for_ranks(4)
    lost = slurm.agents()["beta"].children()
    beta = slurm.network.hosts["beta"]
    beta.cut()
    try:
        trained.wait_for_ranks(2)
        assert not [process for process in lost if lives(process)]
    finally:
        beta.mend()
    trained.wait_for_ranks(4)
    assert len(done(trained.finish())) == 4


@pytest.mark.gate
@pytest.mark.parametrize("allocation", [("--no-kill",)], indirect=True)
def test_without_a_node_that_slurm_takes_out_of_the_allocation_a_job_goes_on(training, slurm):
    trained = training("--min-np", "2", "--keepalive", "5")
    before = trained.wait_for_ranks(4)
    beta = slurm.network.hosts["beta"]
    beta.cut()
    try:
        slurm.set_state("beta", "down")
        after = trained.wait_for_ranks(2)
        assert set(after.values()) == {before[0], before[1]}
    finally:
        beta.mend()
    # Slurm has the node again, and the job does not.
    refusal = b"host beta cannot be used now: srun cannot start the agent: Unable to create step for job"
    trained.job.stderr.wait_for(refusal)
    assert len(done(trained.finish())) == 2
    assert re.search(
        rb"the agent on beta \(pid \d+\) was ended by Slurm: Node failure on beta", trained.job.stderr.data
    )


def test_a_job_ends_with_its_allocation_and_does_not_wait_for_hosts(training, slurm):
    trained = training("--min-np", "2", "--keepalive", "5")
    trained.wait_for_ranks(4)
    slurm.set_state("beta", "down")  # without --no-kill
    assert trained.job.wait() == 143
    assert re.search(rb"Slurm job \d+ has expired, so no rank can be started any more", trained.job.stderr.data)


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--elastic",), marks=pytest.mark.gate)], ids=["plain", "elastic"]
)
def test_a_job_that_is_requeued_goes_on_from_its_checkpoint(submit, slurm, tmp_path, options):
    script = tmp_path / "train.py"
    script.write_text(CHECKPOINTS)
    words = [*options, sys.executable, str(script), str(tmp_path / "checkpoints")]
    batch = submit(*words, options=("--requeue", "--open-mode=append"))
    batch.wait_for("saved", 4)
    assert len(re.findall(r"begin 0 \d 0", batch.output)) == 4
    slurm.run("scontrol", "requeue", batch.job)
    slurm.start_again(batch.job)
    assert slurm.wait_for_end(batch.job) == "COMPLETED", batch.output
    assert sorted(re.findall(r"begin 1 (\d) (\d+)", batch.output)) == [(str(rank), "2") for rank in range(4)]
    assert sorted(re.findall(r"end (\d) (\S+)", batch.output)) == [(str(rank), "12.0") for rank in range(4)]
    slurm.assert_no_process()
