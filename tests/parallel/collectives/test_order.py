"""The order in which ranks and threads submit operations does not matter, except for unnamed ones."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "job",
    [
        *(pytest.param(name, marks=pytest.mark.gate) for name in ("distrun-2", "hosts-1+2")),
        *("distrun-4", pytest.param("mpi-backend-2", marks=pytest.mark.mpi), "hosts-1+1+1"),
    ],
    indirect=True,
)
def test_any_order_on_any_rank_and_thread_gives_each_its_own_result(job):
    job.run("order")


@pytest.mark.parametrize("job", ["distrun-4", "hosts-1+2"], indirect=True)
def test_it_is_the_same_when_nothing_is_cached_or_fused(job):
    job.run("order", DISTRUN_CACHE_CAPACITY="10", DISTRUN_FUSION_THRESHOLD="0")
