"""The collector of a report takes a history, and does not grow with its length."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from histories.training import MS, START, History, event, play

from distrun.runner.observation.consumer import JobEnd, Source
from distrun.runner.observation.model.seconds import RankSecond, Second
from distrun.runner.observation.report.collector import Collector
from distrun.tracing.layout import FORWARD, REMARK, STEP

PLANNED = {0: "h1", 1: "h1", 2: "h2", 3: "h2"}


def gathered(history: History, seconds: float, stops: Mapping[str, tuple[float, float]] | None = None) -> Collector:
    """Return what is collected of `seconds` of a history."""
    collector = play(history, seconds, Collector(START), stops=stops)
    collector.close(JobEnd(0))
    return collector


def test_what_autotuning_has_chosen_is_kept():
    collector = Collector(START)
    names = ["", "autotuned bucket_bytes 100 MiB instead of 25 MiB", "something else"]
    remarks = [event(REMARK, START, name=1), event(REMARK, START, name=2)]
    collector.events(Source(0, 0, "h1"), remarks, names)
    assert list(collector.autotuned) == ["bucket_bytes 100 MiB instead of 25 MiB"]


def test_where_a_step_of_each_rank_goes():
    collector = gathered(History(4, input_ms=lambda rank, step: 21.0 if rank == 3 else 1.0), 10)
    *others, late = collector.ranks(PLANNED)
    assert late.step == pytest.approx(0.066, rel=0.05)
    assert late.seconds["input"] == pytest.approx(0.021, rel=0.05)
    for name in ("forward", "backward"):
        assert late.seconds[name] == pytest.approx(0.020, rel=0.05)
    assert late.held_up == pytest.approx(0.020, rel=0.1)
    assert late.samples == pytest.approx(32, rel=0.01)
    for rank in others:
        assert rank.step == pytest.approx(late.step, rel=0.02)
        assert rank.seconds["waiting"] == pytest.approx(0.020, rel=0.1)
        assert rank.held_up < 0.001
    (straggler,) = collector.stragglers()
    assert (straggler.rank, straggler.host) == (3, "h2")


@pytest.mark.parametrize("seconds", [3.0, 12.0])
@pytest.mark.parametrize("hosts", [("h2",), ("h1", "h2")])
def test_what_a_stopped_agent_tells_late_counts_as_if_it_had_been_in_time(hosts, seconds):
    expected = gathered(History(4, input_ms=lambda rank, step: 21.0 if rank == 3 else 1.0), 20, {})
    late = History(4, input_ms=lambda rank, step: 21.0 if rank == 3 else 1.0)
    found = gathered(late, 20, dict.fromkeys(hosts, (5.25, 5.25 + seconds)))
    for rank, as_expected in zip(found.ranks(PLANNED), expected.ranks(PLANNED), strict=True):
        assert rank.steps == as_expected.steps
        assert rank.step == pytest.approx(as_expected.step, rel=0.02)
        assert rank.samples == pytest.approx(as_expected.samples, rel=0.02)
        for name in ("input", "forward", "backward", "optimizer"):
            assert rank.seconds.get(name, 0.0) == pytest.approx(as_expected.seconds.get(name, 0.0), rel=0.02, abs=1e-4)


def test_of_a_host_that_is_lost_everything_counts_that_it_has_told():
    told = gathered(History(4), 10.25, {})  # told at 10 s
    found = gathered(History(4), 30, {"h2": (10.25, 99.0)})
    expected = [rank.steps for rank in told.ranks(PLANNED)]
    assert [rank.steps for rank in found.ranks(PLANNED)][2:] == expected[2:]
    assert (told.unheard(), found.unheard()) == ([], [2, 3])


@pytest.mark.parametrize("is_told_of_use", [True, False], ids=["agent in time", "no sample yet"])
def test_a_step_that_is_told_of_after_its_second_was_divided_counts_in_the_next(is_told_of_use):
    collector, rank = Collector(START), Source(0, 0, "h1")
    sample = {"cpu": 1.0, "memory": 1.0, "network": {}, "ranks": {"0": {"cpu": 1.0, "memory": 1}}}
    collector.events(rank, [event(FORWARD, START)], [])
    for number in range(1, 101):
        written = START + 100 * number * MS
        if number % 10 == 0:  # the end of a second: its last step has its time, but is not written yet
            if is_told_of_use:
                collector.sample("h1", sample | {"time": written})
            collector.tick(written + 3_000 * MS)
        collector.events(
            rank, [event(FORWARD, written - 2 * MS, value=32), event(STEP, written - MS, number=number)], []
        )
    collector.close(JobEnd(0))
    assert [one.steps for one in collector.ranks({})] == [100]
    assert sum(moment.together.samples for moment in collector._moments) == 3200
    assert not collector.missing_steps


def test_steps_whose_records_were_lost_are_counted_as_missing():
    collector = Collector(START)
    for number in (3, 4, 7, 8, 20):
        collector.events(Source(0, 0, "h1"), [event(STEP, START + number * MS, number=number)], [""])
    collector.events(Source(0, 0, "h1"), [event(STEP, START + 30 * MS, number=1)], [""])  # another process
    assert collector.missing_steps == {0: 2 + 2 + 11}


def test_the_lengths_of_steps_are_those_of_all_ranks():
    steps = gathered(History(2, forward_ms=lambda rank, step: 540.0 if step % 10 == 0 else 40.0), 20).steps
    assert steps.quantile(0.5) == pytest.approx(0.044, rel=0.01)
    assert steps.quantile(1.0) == pytest.approx(0.544, rel=0.01)
    assert steps.total / steps.count == pytest.approx(0.094, rel=0.05)


def test_a_rank_of_which_nothing_is_heard_has_its_place():
    ranks = gathered(History(2), 5).ranks({0: "h1", 1: "h2", 2: "h3"})
    assert [(rank.rank, rank.host, rank.steps > 0) for rank in ranks] == [
        (0, "h1", True),
        (1, "h2", True),
        (2, "h3", False),
    ]


def test_usage_of_hosts_is_an_average_and_memory_the_most():
    collector = Collector(START)
    for number, (cpu, memory) in enumerate([(10.0, 30.0), (30.0, 50.0), (50.0, 40.0)]):
        network = {"eth0": [1000 * number, 2000 * number]}
        sample = {"time": number * 1_000_000_000, "cpu": cpu, "memory": memory, "network": network, "ranks": {}}
        collector.sample("h1", sample)
    (host,) = collector.hosts({"h1": [0]})
    assert (host.cpu, host.memory) == (30.0, 50.0)
    assert (host.received, host.sent) == (pytest.approx(2000 / 3), pytest.approx(4000 / 3))


def test_a_day_takes_no_more_memory_than_minutes():
    collector = Collector(0)
    collector._model.rank(0, 0, "h1")
    for second in range(24 * 3600):
        part = RankSecond({FORWARD: 0.5}, {}, 0.5, 0.0, 2, 64, 1.0)
        collector._take_second(Second(second * 1_000_000_000, {0: part}))
    moments = collector.moments()
    assert 120 - 2 <= len(moments) <= 240
    assert moments[-1].begin + 3 * moments[-1].seconds > 24 * 3600
    assert {moment.steps for moment in moments} == {2.0}
    assert moments[0].shares["forward"] == moments[-1].shares["moving"] == 0.5
    (rank,) = collector.ranks({})
    assert (rank.steps, rank.step) == (2 * 24 * 3600, 0.5)
