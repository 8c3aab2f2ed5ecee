"""The fusion threshold changes in the midst of a job, at the same place in the order of operations on all ranks."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate


@pytest.mark.gate
@pytest.mark.parametrize("job", one_in_gate("hosts-1+2", "distrun-2", "distrun-4"), indirect=True)
def test_the_faster_threshold_is_found_and_every_result_stays_right(job):
    job.run("autotuning", DISTRUN_AUTOTUNE="1")


@pytest.mark.parametrize("job", ["distrun-2"], indirect=True)
@pytest.mark.parametrize(
    "environ", [{}, {"DISTRUN_AUTOTUNE": "1", "DISTRUN_FUSION_THRESHOLD": str(64 << 20)}], ids=["off", "given"]
)
def test_it_stays_where_nothing_is_tuned_or_the_user_has_set_it(job, environ):
    job.run("autotuning", "--off", **environ)
