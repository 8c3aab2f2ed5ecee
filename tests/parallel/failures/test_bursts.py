"""Faults that there once were, in a burst, in a group and in a fork."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate


@pytest.mark.gate
@pytest.mark.parametrize(
    "job", one_in_gate("hosts-1+2", "distrun-2", "distrun-4", "hosts-1+1", "hosts-2+2", "tree-1+2+1"), indirect=True
)
def test_bursts_mixed_groups_and_forked_children_are_right(job):
    job.run_alone("bursts")
