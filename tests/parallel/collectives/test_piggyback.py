"""Small operations travel with the messages that submit them, between hosts and two ranks, and come out the same."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate


@pytest.mark.parametrize(
    ("job", "timeout"),
    [
        pytest.param("hosts-1+1", "0", marks=pytest.mark.gate),  # without a timeout, two ranks need no decision at all
        pytest.param("distrun-2", "0", marks=pytest.mark.gate),
        pytest.param("hosts-1+2", "120", marks=pytest.mark.gate),
        *(("hosts-1+1", "120"), ("hosts-2+2", "0"), ("hosts-1+1+1", "120")),
    ],
    indirect=["job"],
)
def test_operations_that_are_repeated(job, timeout):
    job.run("piggyback", DISTRUN_STALL_TIMEOUT=timeout)


@pytest.mark.gate
@pytest.mark.parametrize("job", one_in_gate("hosts-1+1", "hosts-1+1+1"), indirect=True)
@pytest.mark.parametrize("timeout", one_in_gate("0", "120"))
def test_requests_that_take_turns_under_one_name(job, timeout):
    job.run("turns", DISTRUN_STALL_TIMEOUT=timeout)


@pytest.mark.gate
@pytest.mark.parametrize("job", ["hosts-1+2"], indirect=True)
def test_a_local_peer_that_leaves_with_its_result_does_not_fail_those_whose_result_is_under_way(job):
    job.run_alone("departing")


@pytest.mark.gate
@pytest.mark.parametrize("job", one_in_gate("hosts-1+1", "hosts-1+2"), indirect=True)
def test_ranks_whose_settings_differ_go_by_those_of_rank_0(job):
    job.run("own_settings", DISTRUN_STALL_TIMEOUT="0")
