"""A rank dies, leaves, stops, dawdles or is interrupted: the others hear about it, in words, and never hang.

Timeouts of minutes are over when a test says so: an hour passes on the clock of one rank. Who is named for which death
is shown by the histories in tests/unit/runtime/engine/test_deaths.py.
"""

from __future__ import annotations

import re
import signal

import pytest
from session.tiers import one_in_gate
from without_launcher.unlaunched_ranks import kill, ready

PATIENT = {"DISTRUN_STALL_TIMEOUT": "600", "DISTRUN_STALL_WARNING": "0.2"}
"""Nothing is given up by itself, and rank 0 soon reports what waits."""


def gate(*values):
    """Return parameters that are in the gate; others are not."""
    return pytest.param(*values, marks=pytest.mark.gate)


@pytest.mark.parametrize(
    ("scenario", "victim"),
    [gate("waiting", 0), gate("working", 3), ("waiting", 1), ("working in a set", 1), ("working in a set", 0)],
)
def test_a_killed_rank_is_named_with_its_signal(ranks, scenario, victim):
    everybody = ranks("faults", scenario, str(victim), size=4)
    for rank in kill(everybody, scenario, victim):
        # A rank that heard of it through another one was given the same reason.
        said = rf"JobAbortedError: .*rank {victim} \(process {everybody[victim].pid}\) was killed by SIGKILL"
        assert re.search(said, rank.stdout.text), rank.stdout.text


@pytest.mark.parametrize(
    ("layout", "victim", "how"),
    [
        *(gate({"size": 2}, 1, "exit"), gate({"hosts": (2, 2)}, 3, "returns")),
        *(({"size": 2}, 0, "returns"), ({"hosts": (1, 1, 1)}, 2, "exit"), ({"hosts": (1, 1)}, 0, "exit")),
    ],
)
def test_a_rank_that_ends_while_others_wait_has_left(ranks, layout, victim, how):
    everybody = ready(ranks("faults", "waiting", str(victim), **layout))
    everybody[victim].tell(how)
    assert everybody[victim].end() == (3 if how == "exit" else 0)
    for place, rank in enumerate(everybody):
        if place != victim:
            assert rank.end() == 0
            left = rf"rank {victim} .*has left: it called shutdown\(\) or its script ended"
            assert re.search(f"first: JobAbortedError: .*{left}", rank.stdout.text), rank.stdout.text


@pytest.mark.gate
@pytest.mark.parametrize("victim", one_in_gate(0, 1))
def test_a_stopped_rank_is_named_and_known_to_be_stopped(ranks, victim):
    everybody = ready(ranks("faults", "waiting when told", str(victim), DISTRUN_STALL_TIMEOUT="600"))
    everybody[victim].signal(signal.SIGSTOP)
    other = everybody[1 - victim]
    other.tell("now you")
    other.let_an_hour_pass(until="Error")
    everybody[victim].signal(signal.SIGKILL)
    assert other.end() == 0
    said = other.stdout.text
    assert re.search(
        rf"first: (StallError|JobAbortedError): .*rank {victim} \(process \d+, stopped by a signal\)", said
    ), said


@pytest.mark.parametrize(
    ("layout", "victim"), [gate({"size": 2}, 1), gate({"hosts": (1, 1)}, 0), ({"hosts": (1, 1)}, 1)]
)
def test_a_rank_stopped_in_the_middle_of_an_operation_is_named(ranks, layout, victim):
    everybody = ready(ranks("faults", "stopped inside", str(victim), **PATIENT, **layout))
    everybody[victim].await_stop()
    other = everybody[1 - victim]
    other.stderr.wait_for_match(r"waiting for \d+ s: allreduce 'first', which has begun")
    other.let_an_hour_pass(until="JobAbortedError")
    everybody[victim].signal(signal.SIGKILL)
    assert other.end() == 0
    where = ", stopped by a signal" if "size" in layout else f" on host host{victim}"
    assert re.search(
        rf"JobAbortedError: gave up after \d+ s: allreduce 'first', .*rank {victim} \(process \d+{where}\)",
        other.stdout.text,
    ), other.stdout.text


@pytest.mark.parametrize(
    ("layout", "victim"), [gate({"size": 3}, 0), gate({"hosts": (1, 2)}, 2), ({"size": 3}, 1), ({"hosts": (2, 1)}, 0)]
)
def test_a_missing_rank_is_reported_with_its_stack_and_the_job_goes_on(ranks, layout, victim):
    everybody = ready(ranks("faults", "busy", str(victim), DISTRUN_STALL_WARNING="0.3", **layout))
    # The first report may come before the second of them has submitted it, or the victim has begun its loop.
    await_report(everybody, victim)
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


def await_report(everybody, victim):
    """Wait until rank 0 reports that all but one have submitted the first operation."""
    one, other = [rank for rank in range(3) if rank != victim]
    pid = everybody[victim].pid
    everybody[0].stderr.wait_for_match(
        rf"allreduce 'first' has waited for .* s: submitted by ranks {one}(-|, ){other} "
        rf"\(at faults.py:\d+ in attempt\), not by rank {victim} \(process {pid}( on host host[12])?\)\n"
    )


@pytest.mark.parametrize(
    ("layout", "victim"),
    [gate({"size": 3}, 0), gate({"hosts": (1, 1, 1)}, 2), ({"size": 3}, 1), ({"hosts": (1, 1, 1)}, 0)],
)
def test_an_operation_given_up_fails_on_all_ranks_and_the_job_goes_on(ranks, layout, victim):
    everybody = ready(ranks("faults", "given up", str(victim), **PATIENT, **layout))
    await_report(everybody, victim)
    everybody[0].let_an_hour_pass()
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


@pytest.mark.gate
def test_an_operation_given_up_can_be_tried_again_under_its_name(ranks):
    everybody = ready(ranks("faults", "retry", "1", size=3, **PATIENT))
    await_report(everybody, 1)
    everybody[0].let_an_hour_pass()
    for place in (0, 2):
        everybody[place].stdout.wait_for("first: StallError")
    everybody[1].tell("go on")
    for rank in everybody:
        assert rank.end() == 0, rank.stderr.text
        assert "first: done\nend\n" in rank.stdout.text


@pytest.mark.parametrize(
    ("layout", "victim"), [gate({"size": 2}, 0), gate({"hosts": (1, 1)}, 1), ({"size": 2}, 1), ({"hosts": (1, 1)}, 0)]
)
def test_an_interrupt_is_raised_where_it_happened_and_ends_the_job_for_all(ranks, layout, victim):
    everybody = ready(ranks("faults", "interrupted", str(victim), DISTRUN_STALL_WARNING="0.2", **layout))
    everybody[0].stderr.wait_for("allreduce 'first' has waited")  # so the victim is inside it
    everybody[victim].signal(signal.SIGINT)
    everybody[victim].stdout.wait_for("KeyboardInterrupt\n")
    everybody[1 - victim].tell("now you")
    for rank in everybody:
        assert rank.end() == 0, rank.stderr.text
    text = f"JobAbortedError: .*rank {victim} was interrupted while communicating: KeyboardInterrupt"
    assert re.search(f"second: {text}", everybody[victim].stdout.text)
    assert re.search(f"first: {text}", everybody[1 - victim].stdout.text)
