"""Checkpoints of several ranks: written by one or by all, restored by any number."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate


@pytest.mark.gate
@pytest.mark.parametrize("job", ["distrun-2"], indirect=True)
@pytest.mark.parametrize("mode", one_in_gate("sharded", "rank0"))
@pytest.mark.parametrize("what", ["faults", "apart", "unreadable"])
def test_all_ranks_have_the_newest_that_is_whole(job, tmp_path, mode, what):
    job.run("checkpoint", str(tmp_path), mode, what)


@pytest.mark.parametrize(
    ("before", "after", "mode"),
    [
        pytest.param("hosts-1+2", "distrun-2", "sharded", marks=pytest.mark.gate),
        *(("distrun-2", "distrun-4", "sharded"), ("distrun-4", "distrun-2", "rank0")),
    ],
)
def test_another_number_of_ranks_restores(make_job, tmp_path, mode, before, after):
    make_job(before).run("checkpoint", str(tmp_path), mode, "save")
    make_job(after).run("checkpoint", str(tmp_path), mode, "restore")
