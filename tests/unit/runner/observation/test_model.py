"""The model of a running job, by histories of events: where the time goes, and which rank the others wait for."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from histories.training import MS, NAMES, START, History, event, play, played
from session.tiers import one_in_gate

from distrun.runner.observation.consumer import Source
from distrun.runner.observation.model.model import Model
from distrun.runner.observation.model.stragglers import total
from distrun.tracing.layout import BACKWARD, FORWARD, INPUT, WAITING


def noise(seed: int, share: float = 0.1) -> Callable[[int, int], float]:
    """Return a time of a forward and backward pass with noise, and a pause of half a second now and then."""
    rng = random.Random(seed)

    def forward_ms(rank: int, step: int) -> float:
        return 40.0 * rng.gauss(1.0, share) + (500.0 if rng.random() < 0.001 else 0.0)

    return forward_ms


def use(model: Model, host: str, at: int, ranks: Sequence[int] = (), **network: list[float]) -> None:
    """Tell a model what a host with some ranks uses."""
    used = {str(rank): {"cpu": 1.0, "memory": 1} for rank in ranks}
    model.sample(host, {"time": at, "cpu": 5, "memory": 6, "network": network, "ranks": used})


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_rank_that_is_20_ms_late_with_its_input_is_named_within_10_seconds(size):
    model = Model()
    history = History(size, input_ms=lambda rank, step: 21.0 if rank == size - 1 else 1.0)
    assert next(at for at in played(history, 20, model) if model.stragglers) <= 10
    (straggler,) = model.stragglers
    assert straggler.rank == size - 1
    assert straggler.per_step == pytest.approx(0.020, rel=0.2)
    assert straggler.sentence.startswith(f"rank {size - 1} on h2 costs every step ")
    assert straggler.sentence.endswith("%): it waits for its input")
    assert not straggler.stands


def test_it_stands_after_half_a_minute_and_is_forgotten_when_it_has_caught_up():
    model = Model()
    history = History(4, input_ms=lambda rank, step: 21.0 if rank == 3 and step < 700 else 1.0)
    stood = False
    for _ in played(history, 70, model):
        stood |= any(one.stands for one in model.stragglers)
    assert stood
    assert model.stragglers == []


@pytest.mark.parametrize("seed", one_in_gate(*range(5)))
def test_nobody_is_named_for_noise(seed):
    model = Model()
    for at in played(History(4, forward_ms=noise(seed)), 60, model):
        assert model.stragglers == [], at


def test_both_ranks_of_a_slow_host_are_named():
    model = play(History(8, forward_ms=lambda rank, step: 60.0 if rank >= 6 else 40.0), 12, Model())
    assert {one.rank for one in model.stragglers} == {6, 7}
    assert all("forward and backward passes take longer" in one.sentence for one in model.stragglers)


def test_where_the_time_of_each_rank_goes():
    seconds = []
    model = Model(seconds.append)
    history = History(3, input_ms=lambda rank, step: 21.0 if rank == 1 else 1.0)  # 21 + 40 + 2 + 1 = 64 ms
    play(history, 30, model)
    sums = total(seconds[2:])
    shares = {state: seconds / sums[0].length for state, seconds in sums[0].states.items()}
    assert shares[INPUT] == pytest.approx(1 / 64, abs=0.01)
    assert shares[FORWARD] + shares[BACKWARD] == pytest.approx(40 / 64, abs=0.02)
    assert sums[0].waiting == {1: pytest.approx(sums[0].length * 20 / 64, rel=0.05)}
    assert sums[0].moving / sums[0].length == pytest.approx(2 / 64, abs=0.01)
    assert sums[1].waiting.get(1) is None
    assert sums[1].cost / sums[1].length == pytest.approx(20 / 64, abs=0.02)
    assert model.steps_per_second(0) == pytest.approx(1000 / 64, rel=0.05)
    assert model.samples_per_second(0) == pytest.approx(32_000 / 64, rel=0.05)


def test_a_rank_that_stops_in_its_data_loader_is_missed_before_anything_is_done():
    history = History(3)
    model = play(history, 5, Model())
    at = history.now
    for rank in (0, 1):
        model.events(Source(rank, rank, "h1"), [event(WAITING, at + 10 * MS, name=1)], NAMES)
    model.events(Source(2, 2, "h2"), [event(INPUT, at)], NAMES)
    for half in range(1, 17):
        model.tick(at + half * 500 * MS)
        if model.stragglers:
            break
    assert [one.rank for one in model.stragglers] == [2]
    assert "it waits for its input" in model.stragglers[0].sentence
    assert half * 0.5 <= 8


def test_a_rank_whose_process_has_ended_waits_for_nobody_any_more():
    history = History(2)
    model = play(history, 5, Model())
    at = history.now
    for half, ranks in enumerate([[0], []]):
        use(model, "h1", at + half * 500 * MS, ranks)
        model.events(Source(0, 0, "h1"), [event(WAITING, at + 10 * MS, name=1)] if half == 0 else [], NAMES)
    for half in range(1, 21):
        model.events(Source(1, 1, "h2"), [event(FORWARD, at + half * 500 * MS)], NAMES)
        model.tick(at + half * 500 * MS)
        assert model.stragglers == []
    assert model.ranks[0].account.is_gone
    assert not model.ranks[1].account.is_gone
    assert model.recent(1).length == 10
    assert model.recent(0).length < 10


def test_the_ranks_of_a_host_that_tells_nothing_any_more_are_gone_until_it_does():
    model = play(History(2), 5, Model())
    use(model, "h2", model.now, [1])
    model.tick(model.now + 4_500 * MS)
    assert not model.ranks[1].account.is_gone
    model.tick(model.now + 1_000 * MS)
    assert [number for number, rank in model.ranks.items() if rank.account.is_gone] == [1]
    assert model.hosts["h2"].is_silent(model.now)
    use(model, "h2", model.now, [1])
    assert not model.ranks[1].account.is_gone


def test_many_operations_are_looked_at_now_and_then():
    model = Model()
    model._operations.MOST = 50
    play(History(4, input_ms=lambda rank, step: 21.0 if rank == 3 else 1.0), 12, model)
    assert model._operations.stride > 1
    assert [one.rank for one in model.stragglers] == [3]


def test_rates_of_the_network_are_those_of_the_busiest_interface():
    model = Model()
    for n in (0, 1, 2):
        use(model, "h1", START + n * 1000 * MS, lo=[9e9 * n, 9e9 * n], eth0=[1000 * n, 50 * n], docker0=[n, 0])
    assert (model.hosts["h1"].received, model.hosts["h1"].sent) == (1000, 50)


def test_what_travels_in_bursts_has_a_rate_over_ten_seconds():
    model = Model()
    for second in range(31):
        use(model, "h1", START + second * 1000 * MS, eth0=[10_000 * (second // 10), 0])
        if second >= 10:
            assert model.hosts["h1"].received_lately == 1000
    assert model.hosts["h1"].received == 10_000
