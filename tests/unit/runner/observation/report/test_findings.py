"""The sentences of a report: what bounds a job, and its efficiency."""

from dataclasses import replace

import pytest
from histories.job_summary import BALANCED, rank_of, summary_of

from distrun.runner.observation.model.stragglers import Straggler
from distrun.runner.observation.report.findings import efficiency, finding
from distrun.runner.observation.report.summary import Host


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({}, "Compute-bound: the ranks compute for 33 ms of each step of 40 ms (82%)."),
        ({"input": 0.035}, "Input-bound: the ranks wait for their next batch for 35 ms of each step of 73 ms"),
        ({"moving": 0.035}, "Network-bound: the ranks wait for data on their way over the network for 35 ms"),
    ],
)
def test_one_sentence_says_what_bounds_a_job(more, sentence):
    found = finding(summary_of(rank_of(0, **more), rank_of(1, **more)))
    assert found.sentence.startswith(sentence)
    assert found.advice


def test_a_batch_that_is_too_small_for_the_network_is_told_so():
    assert "batch is small" not in finding(summary_of(rank_of(0, moving=0.02), rank_of(1, moving=0.02))).advice
    assert "batch is small" in finding(summary_of(rank_of(0, moving=0.04), rank_of(1, moving=0.04))).advice


def test_a_narrower_wire_is_advised_only_where_there_is_none():
    summary = summary_of(rank_of(0, moving=0.04), rank_of(1, moving=0.04))
    assert "--wire-dtype bfloat16" in finding(replace(summary, settings={})).advice
    assert "--wire-dtype" not in finding(replace(summary, settings={"DISTRUN_WIRE_DTYPE": "bfloat16"})).advice


def test_on_one_host_no_network_is_to_blame():
    summary = summary_of(rank_of(0, moving=0.02), rank_of(1, moving=0.02))
    quiet = finding(replace(summary, hosts=[Host("h0", [0, 1], cpu=40.0)]))
    assert quiet.sentence.startswith("Exchange-bound: the ranks wait for data on their way over their host's memory")
    assert "network" not in quiet.advice
    busy = finding(replace(summary, hosts=[Host("h0", [0, 1], cpu=99.6)]))
    assert busy.sentence.startswith("Bound by the cores of h0: ")


def test_a_straggler_is_named_with_its_cause():
    late = Straggler(3, "h3", 0.25, 0.020, "it waits for its input")
    found = finding(replace(summary_of(*map(rank_of, range(4))), stragglers=[late]))
    assert found.sentence == "Held up by one rank: rank 3 on h3 costs every step 20 ms (25 %): it waits for its input."
    assert "disk" in found.advice


def test_a_slow_host_is_named_where_all_that_are_late_are_its_ranks():
    ranks = [replace(rank_of(number), host=f"h{number // 2}", held_up=0.01 * (number > 3)) for number in range(6)]
    late = [Straggler(rank, "h2", 0.25, 0.020, "its forward and backward passes take longer") for rank in (4, 5)]
    found = finding(replace(summary_of(*ranks), stragglers=late))
    assert found.sentence.startswith("Held up by the host h2, ranks 4-5: rank 4 on h2 costs every step 20 ms")


def test_ranks_that_are_late_by_turns_are_no_stragglers():
    ranks = [replace(rank_of(0), held_up=0.008), replace(rank_of(1), held_up=0.003)]
    late = [Straggler(0, "h0", 0.20, 0.008, "")]
    assert finding(replace(summary_of(*ranks), stragglers=late)).sentence.startswith("Held up by one rank: rank 0 ")
    assert finding(
        replace(summary_of(ranks[0], replace(ranks[1], held_up=0.005)), stragglers=late)
    ).sentence.startswith("Compute-bound")


def test_efficiency_is_what_is_not_lost_by_waiting_and_moving():
    scale = efficiency(summary_of(rank_of(0, waiting=0.04, moving=0.025), rank_of(1, moving=0.025, forward=0.052)))
    assert scale.step == pytest.approx(0.1)
    assert scale.share == pytest.approx(1 - (0.04 + 0.025 + 0.025) / 0.2)
    assert "wait" in scale.explanation


def test_efficiency_by_the_time_of_one_rank_that_is_given():
    summary = summary_of(rank_of(0, waiting=0.04), rank_of(1))
    scale = efficiency(replace(summary, single_rank_step=0.03))
    assert scale.share == pytest.approx(0.03 / (sum(BALANCED.values()) + 0.02), rel=1e-6)
    assert "--single-rank-step" in scale.explanation


def test_without_steps_nothing_is_claimed():
    summary = summary_of(replace(rank_of(0), steps=0))
    assert finding(summary).sentence.startswith("No rank has told of two steps")
    assert efficiency(summary) is None
