"""A rank that waits for a message hears, in words, who is gone, and what was sent before is not lost."""

from __future__ import annotations

import re
import signal

import pytest
from session.tiers import one_in_gate
from without_launcher.unlaunched_ranks import ready

ONE_HOST, TWO_HOSTS = {"size": 2}, {"hosts": (1, 1)}


def kill(rank) -> None:
    rank.signal(signal.SIGKILL)
    rank.process.wait()


@pytest.mark.parametrize(
    ("scenario", "layout"),
    [
        pytest.param("strangers", TWO_HOSTS, marks=pytest.mark.gate),
        pytest.param("acquainted", ONE_HOST, marks=pytest.mark.gate),
        *(("strangers", ONE_HOST), ("acquainted", TWO_HOSTS)),
    ],
)
def test_a_killed_rank_is_named(ranks, scenario, layout):
    other, victim = ready(ranks("message_faults", scenario, "1", **layout))
    kill(victim)
    assert other.end() == 0, other.stderr.text
    named = rf"rank 1 \(process {victim.pid}"
    gone = "was killed by SIGKILL" if "size" in layout else "on host host1\\) is gone"
    what = "send of 20000000 bytes" if scenario == "acquainted" else "receive of 10 bytes"
    assert re.search(rf"JobAbortedError: {what} of uint8 with tag 0 .* rank 1: .*{named}.*{gone}", other.stdout.text)
    if scenario == "strangers":
        assert re.search(rf"again: JobAbortedError: .*{gone}", other.stdout.text)


@pytest.mark.gate
@pytest.mark.parametrize("layout", one_in_gate(TWO_HOSTS, ONE_HOST))
def test_a_rank_that_leaves_is_named(ranks, layout):
    other, victim = ready(ranks("message_faults", "strangers", "1", **layout))
    victim.tell("leave")
    assert victim.end() == 0
    assert other.end() == 0, other.stderr.text
    assert re.search(
        rf"receive: JobAbortedError: .*rank 1 \(process {victim.pid}.*has left: it called shutdown", other.stdout.text
    )
    assert "again: JobAbortedError: send of" in other.stdout.text


@pytest.mark.gate
@pytest.mark.parametrize("scenario", one_in_gate("acquainted", "third"))
def test_a_wait_for_any_rank_or_for_one_that_lives_ends_by_a_death_too(ranks, scenario):
    everybody = ready(ranks("message_faults", scenario, "2", size=3))
    kill(everybody[2])
    for rank in everybody[:2]:
        assert rank.end() == 0, rank.stderr.text
        assert re.search(rf"JobAbortedError: .*rank 2 \(process {everybody[2].pid}\)", rank.stdout.text)


@pytest.mark.gate
@pytest.mark.parametrize("layout", one_in_gate(ONE_HOST, TWO_HOSTS))
def test_a_rank_that_dies_in_the_middle_of_a_message_is_named(ranks, layout):
    other, victim = ranks("message_faults", "middle", "1", **layout)
    assert victim.end() == -signal.SIGKILL
    assert other.end() == 0, other.stderr.text
    assert re.search(
        rf"receive: JobAbortedError: receive of 20000000 bytes .*rank 1 \(process {victim.pid}", other.stdout.text
    )


@pytest.mark.gate
@pytest.mark.parametrize("layout", one_in_gate(TWO_HOSTS, ONE_HOST))
def test_what_was_sent_is_received_after_the_sender_has_left(ranks, layout):
    other, victim = ready(ranks("message_faults", "parting", "1", **layout))
    victim.tell("leave")
    assert victim.end() == 0, victim.stderr.text
    other.tell("receive")
    assert other.end() == 0, other.stderr.text
    assert "all is here" in other.stdout.text
    assert "more: JobAbortedError" in other.stdout.text
    assert "has left" in other.stdout.text


@pytest.mark.gate
def test_shutdown_ends_all_waits_and_the_thread(ranks):
    for rank in ranks("message_faults", "shutdown", "0"):
        assert rank.end() == 0, rank.stderr.text
        for number, what in enumerate(("receive", "send")):
            assert re.search(rf"wait {number}: JobAbortedError: {what} of .*shutdown\(\)", rank.stdout.text)


@pytest.mark.gate
def test_a_forked_child_is_no_rank_and_its_parent_goes_on(ranks):
    for rank in ranks("message_faults", "fork", "0"):
        assert rank.end() == 0, rank.stderr.text
        assert ": a forked child of a rank is not a rank" in rank.stdout.text
        assert "parent: done" in rank.stdout.text


@pytest.mark.gate
def test_a_rank_that_is_alone_has_nobody_to_talk_to(ranks):
    (rank,) = ranks("message_faults", "alone", "0", size=1)
    assert rank.end() == 0, rank.stderr.text
    assert "send: UsageError: rank 0 cannot send to itself" in rank.stdout.text
    assert "receive: UsageError: rank 0 has no other rank to receive from" in rank.stdout.text
    assert "nobody: UsageError: rank 0 cannot receive from rank 1: the job has ranks 0 to 0" in rank.stdout.text
