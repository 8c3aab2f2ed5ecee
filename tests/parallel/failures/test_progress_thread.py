"""The engine's own thread dies of an error: the job fails with that reason, whatever the script does."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate

REASON = "the progress thread of rank {} failed: ZeroDivisionError: the test wants it so"


@pytest.mark.parametrize(
    ("where", "then", "hosts"),
    [
        pytest.param("executing", "waits", (2,), marks=pytest.mark.gate),
        pytest.param("between turns", "ends", (1, 1), marks=pytest.mark.gate),
        *(("executing", "ends", (1, 2)), ("between turns", "waits", (2,))),
    ],
)
def test_all_ranks_hear_the_reason_and_the_rank_has_an_exit_status(ranks, where, then, hosts):
    *others, last = ranks("progress_thread", where, then, hosts=hosts)
    reason = REASON.format(len(others))
    assert last.end() == 1
    assert reason in last.stderr.text
    if then == "waits":
        assert f"JobAbortedError: {reason}" in last.stderr.text
    for rank in others:
        assert rank.end() == 0, rank.stderr.text
        assert "heard: " in rank.stdout.text
        assert reason in rank.stdout.text


@pytest.mark.gate
@pytest.mark.parametrize("where", one_in_gate("between turns", "executing"))
def test_the_launcher_has_an_exit_status_though_the_script_merely_ends(make_job, where):
    done = make_job("distrun-2").start("progress_thread", where, "ends")
    assert done.returncode == 1
    assert REASON.format(1) in done.stderr


@pytest.mark.gate
def test_a_script_that_handles_the_error_may_end_well(ranks):
    both = ranks("progress_thread", "between turns", "handles it")
    for rank in both:
        assert rank.end() == 0, rank.stderr.text
    assert f"rank 1 handled: {REASON.format(1)}" in both[1].stdout.text
