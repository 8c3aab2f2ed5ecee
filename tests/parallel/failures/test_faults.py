"""A rank dies, leaves, stops, dawdles or is interrupted: the others hear about it, in words, and never hang."""

from __future__ import annotations

import re
import signal

import pytest
from without_launcher.unlaunched_ranks import DEAD, kill, ready


@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.parametrize("scenario", ["waiting", "working", "working in a set"])
def test_a_killed_rank_is_named_with_its_signal_within_a_second(ranks, scenario, victim):
    everybody = kill(ranks, scenario, victim, DEAD, size=4)
    for place, rank in enumerate(everybody):
        if place == victim:
            continue
        said = rank.stdout.text
        # Whoever heard of it through another rank was told the same story.
        assert re.search(
            rf"JobAbortedError: .*rank {victim} \(process {everybody[victim].pid}\) was killed by SIGKILL", said
        )
        if scenario == "waiting":
            assert "second: JobAbortedError" in said


@pytest.mark.parametrize("how", ["returns", "exit"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_ends_while_others_wait_has_left(ranks, how, victim):
    everybody = ready(ranks("faults", "waiting", str(victim)))
    everybody[victim].tell(how)
    assert everybody[victim].end() == (3 if how == "exit" else 0)
    other = everybody[1 - victim]
    assert other.end() == 0
    assert re.search(
        rf"first: JobAbortedError: allreduce 'first': rank {victim} .*has left: "
        r"it called shutdown\(\) or its script ended",
        other.stdout.text,
    )


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_named_and_known_to_be_stopped(ranks, victim):
    everybody = ready(ranks("faults", "waiting when told", str(victim), DISTRUN_STALL_TIMEOUT="1"))
    everybody[victim].signal(signal.SIGSTOP)
    other = everybody[1 - victim]
    other.tell("now you")
    other.stdout.wait_for("Error")
    everybody[victim].signal(signal.SIGKILL)
    assert other.end() == 0
    everybody[victim].end()
    said = other.stdout.text
    assert re.search(
        rf"first: (StallError|JobAbortedError): .*rank {victim} \(process \d+, stopped by a signal\)", said
    ), said


def test_a_rank_stopped_in_the_middle_of_an_operation_is_named_and_known_to_be_stopped(ranks):
    everybody = ready(ranks("faults", "stopped inside", "1", DISTRUN_STALL_TIMEOUT="1"))
    everybody[0].stdout.wait_for("JobAbortedError")
    everybody[1].signal(signal.SIGKILL)
    assert everybody[0].end() == 0
    assert re.search(
        r"JobAbortedError: gave up after 1 s: allreduce 'first', .*rank 1 \(process \d+, stopped by a signal\)",
        everybody[0].stdout.text,
    )


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_missing_rank_is_reported_with_its_stack_and_the_job_goes_on(ranks, victim):
    everybody = ready(ranks("faults", "busy", str(victim), size=3, DISTRUN_STALL_WARNING="0.3"))
    present = [rank for rank in range(3) if rank != victim]
    # The first report may come before the second of them has submitted it, or the victim has begun its loop.
    everybody[0].stderr.wait_for_match(
        rf"allreduce 'first' has waited for .* s: submitted by ranks {present[0]}(-|, ){present[1]} "
        rf"\(at faults.py:\d+ in attempt\), not by rank {victim} \(process {everybody[victim].pid}"
    )
    everybody[0].stderr.wait_for_match(
        rf"rank {victim} had been busy with the script's own code for \d+\.\d s; its main thread is at\n"
    )
    everybody[0].stderr.wait_for("in busy_with_something_else")
    everybody[0].stderr.wait_for("select.select([sys.stdin]")
    everybody[victim].tell("go on")
    for rank in everybody:
        assert rank.end() == 0, rank.stderr.text
        assert "first: done\nsecond: done\nend\n" in rank.stdout.text
    assert all("has waited for" not in rank.stderr.text for rank in everybody[1:]), "only rank 0 reports"


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_an_operation_given_up_fails_on_all_ranks_and_the_job_goes_on(ranks, victim):
    everybody = ready(ranks("faults", "given up", str(victim), size=3, DISTRUN_STALL_TIMEOUT="1"))
    for place, rank in enumerate(everybody):
        if place != victim:
            rank.stdout.wait_for("first: StallError")
    everybody[victim].tell("go on")
    everybody[victim].stdout.wait_for("first: StallError")
    for rank in everybody:
        rank.tell("go on")
    for rank in everybody:
        assert rank.end() == 0, rank.stderr.text
        assert re.search(rf"first: StallError: allreduce 'first' .*not by rank {victim} ", rank.stdout.text)
        assert "second: done\nend\n" in rank.stdout.text


def test_an_operation_given_up_can_be_tried_again_under_its_name(ranks):
    everybody = ready(ranks("faults", "retry", "1", size=3, DISTRUN_STALL_TIMEOUT="0.3"))
    for place in (0, 2):
        everybody[place].stdout.wait_for("first: StallError")
    everybody[1].tell("go on")
    for rank in everybody:
        assert rank.end() == 0, rank.stderr.text
        assert "first: done\nend\n" in rank.stdout.text


@pytest.mark.parametrize("victim", [0, 1])
def test_an_interrupt_is_raised_where_it_happened_and_ends_the_job_for_all(ranks, victim):
    everybody = ready(ranks("faults", "interrupted", str(victim), DISTRUN_STALL_WARNING="0.2"))
    everybody[0].stderr.wait_for("allreduce 'first' has waited")  # so the victim is inside it
    everybody[victim].signal(signal.SIGINT)
    everybody[victim].stdout.wait_for("KeyboardInterrupt\n")
    everybody[1 - victim].tell("now you")
    for rank in everybody:
        assert rank.end() == 0, rank.stderr.text
    text = f"JobAbortedError: .*rank {victim} was interrupted while communicating: KeyboardInterrupt"
    assert re.search(f"second: {text}", everybody[victim].stdout.text)
    assert re.search(f"first: {text}", everybody[1 - victim].stdout.text)
