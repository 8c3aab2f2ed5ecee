"""Disagreement is an error on every rank, with names, values and places, and the job goes on; and faults of before."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate


@pytest.mark.gate
def test_disagreements_and_impossible_requests_raise_clearly_and_the_job_goes_on(job):
    job.run("errors")


@pytest.mark.gate
@pytest.mark.parametrize(
    "job", one_in_gate("hosts-1+2", "distrun-2", "distrun-4", "hosts-1+1", "hosts-2+2", "tree-1+2+1"), indirect=True
)
def test_bursts_mixed_groups_and_forked_children_are_right(job):
    job.run_alone("bursts")
