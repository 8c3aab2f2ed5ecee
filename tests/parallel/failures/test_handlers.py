"""A signal handler interrupts the thread that makes progress: nothing hangs, and nothing gets lost."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate

LAYOUTS = {"one host": {"size": 2}, "two hosts": {"hosts": (1, 1)}}


def interrupted(ranks, then, **layout):
    """Two ranks, of which the first has been interrupted in the middle of an operation that the other has not begun."""
    both = ranks("handlers", then, **layout)
    both[0].stdout.wait_for("handled")
    return both


@pytest.mark.parametrize(
    ("then", "layout"),
    [
        pytest.param("submits", "one host", marks=pytest.mark.gate),
        pytest.param("forks", "two hosts", marks=pytest.mark.gate),
        *(("submits", "two hosts"), ("forks", "one host")),
    ],
)
def test_a_handler_may_submit_and_fork_and_the_job_goes_on(ranks, then, layout):
    both = interrupted(ranks, then, **LAYOUTS[layout])
    both[1].tell("now you")
    for rank in both:
        assert rank.end() == 0, rank.stderr.text


@pytest.mark.gate
@pytest.mark.parametrize("layout", one_in_gate(*LAYOUTS))
def test_a_handler_may_shut_down_and_all_are_told(ranks, layout):
    both = interrupted(ranks, "shuts down", **LAYOUTS[layout])
    both[1].tell("now you")
    for rank in both:
        assert rank.end() == 0, rank.stderr.text
    assert "failed: " in both[0].stdout.text
    assert "distrun.shutdown() was called" in both[0].stdout.text
    assert "rank 0 (process" in both[1].stdout.text
    assert "it called shutdown() or its script ended" in both[1].stdout.text
