"""Elastic jobs within an allocation of a real Slurm, whose nodes fail and come back."""

from __future__ import annotations

import re

import pytest
from elastic_training import Training, done, kill


@pytest.fixture
def training(distrun, tmp_path):
    return lambda *arguments, **more: Training(distrun, tmp_path, *arguments, **more)


def finish(trained, slurm):
    output = trained.finish()
    slurm.assert_no_process()
    return done(output)


def test_a_rank_that_is_killed_is_replaced(training, slurm):
    trained = training("--elastic")
    before = trained.wait_for_ranks(4)
    kill(before[3])
    after = trained.wait_for_ranks(4)
    assert len(set(before.values()) & set(after.values())) == 3
    assert len(finish(trained, slurm)) == 4


@pytest.mark.parametrize("node", ["alpha", "beta"])
def test_the_ranks_of_an_agent_that_is_killed_start_anew_in_a_new_step(training, slurm, node):
    trained = training("--elastic")
    before = trained.wait_for_ranks(4)
    slurm.agents()[node].kill()
    after = trained.wait_for_ranks(4)
    assert len(set(before.values()) & set(after.values())) == 2
    assert len(finish(trained, slurm)) == 4


def test_a_node_that_is_cut_off_is_left_out_until_it_is_back(training, slurm):
    trained = training("--min-np", "2", "--keepalive", "3")
    trained.wait_for_ranks(4)
    lost = slurm.agents()["beta"].children()
    beta = slurm.network.hosts["beta"]
    beta.cut()
    try:
        trained.wait_for_ranks(2)
        assert not [process for process in lost if process.is_running() and process.status() != "zombie"]
    finally:
        beta.mend()
    trained.wait_for_ranks(4)
    assert len(finish(trained, slurm)) == 4


def test_restarts_of_a_requeued_job_are_counted(distrun, python, slurm):
    job = distrun("-np", "1", *python("import os; print(os.environ['DISTRUN_RESTART'])"), SLURM_RESTART_COUNT="2")
    assert job.wait() == 0
    assert re.findall(rb"\d+$", job.stdout.data.strip()) == [b"2"]
