"""Checkpoints of several ranks: written by one or by all, restored by any number."""

from __future__ import annotations

import itertools

import pytest

MODES = ["rank0", "sharded"]
JOBS = ["distrun-2", "distrun-4", "hosts-1+2"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["save", "faults", "apart", "unreadable"])
def test_all_ranks_have_the_newest_that_is_whole(job, tmp_path, mode, what):
    job.run("checkpoint", str(tmp_path), mode, what)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(JOBS, 2)))
def test_another_number_of_ranks_restores(make_job, tmp_path, mode, before, after):
    make_job(before).run("checkpoint", str(tmp_path), mode, "save")
    make_job(after).run("checkpoint", str(tmp_path), mode, "restore")
