"""Adasum between real ranks equals its published formula."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate

JOBS = ["distrun-2", "distrun-1", "distrun-3", "distrun-4", "mpi-backend-2", "hosts-1+2", "hosts-1+1+1"]


@pytest.mark.gate
@pytest.mark.parametrize("job", one_in_gate(*JOBS), indirect=True)
def test_every_number_of_ranks_and_floating_point_type(job):
    job.run("adasum")


@pytest.mark.parametrize("job", ["distrun-2", "hosts-2+2"], indirect=True)
def test_hosts_can_be_averaged_first(job):
    job.run("adasum", DISTRUN_ADASUM="hierarchical")
