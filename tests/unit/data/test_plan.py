"""The plan of samples by rank, for any number of samples and ranks, any batch, seed and epoch."""

from collections import Counter
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, strategies as st

from distrun.data.plan import Division, Plan, StreamPlan, generator
from distrun.data.shards import chunks, deal, shuffled
from distrun.errors import UsageError

SIZES = st.integers(1, 7)
BATCHES = st.none() | st.integers(1, 9)
LENGTHS = st.integers(0, 150)
SEEDS = st.sampled_from([0, 1, 42, 2**32 + 1, 2**70])
EPOCHS = st.integers(0, 3)


def plans(samples, ranks, **how):
    """Every rank's plan; None where there is none, on which all ranks agree."""
    try:
        return [Plan(Division(rank, ranks, **how), samples) for rank in range(ranks)]
    except UsageError:
        return None


@given(LENGTHS, SIZES, BATCHES, st.booleans(), SEEDS, EPOCHS, st.booleans())
def test_each_sample_is_taken_once_apart_from_what_is_said(samples, ranks, batch, shuffle, seed, epoch, drop):
    everybody = plans(samples, ranks, batch_size=batch, shuffle=shuffle, seed=seed, drop_remainder=drop)
    if everybody is None:
        assert samples < ranks or (drop and samples < ranks * (batch or 1))
        return
    parts = [plan.indices(epoch) for plan in everybody]
    assert {len(part) for part in parts} == {everybody[0].per_rank}
    times = Counter(int(index) for part in parts for index in part)
    assert set(times) <= set(range(samples))
    padded, dropped = everybody[0].padded, everybody[0].dropped
    assert Counter(times.values()) == Counter({1: samples - padded - dropped, 2: padded})
    assert padded < ranks
    assert dropped < ranks * (batch or 1)
    assert not (padded if drop else dropped)
    assert everybody[0].steps == len(list(chunks(parts[0], batch or 1)))


@given(LENGTHS, SIZES, st.integers(1, 9), SEEDS, EPOCHS)
def test_the_ranks_batches_are_together_those_of_one_process(samples, ranks, batch, seed, epoch):
    everybody = plans(samples, ranks, batch_size=batch, shuffle=True, seed=seed)
    if everybody is None:
        return
    alone = Plan(Division(0, 1, ranks * batch, shuffle=True, seed=seed), samples)
    order = alone.indices(epoch)
    padded = np.concatenate([order, order[: everybody[0].padded]])
    together = list(chunks(padded.tolist(), ranks * batch))
    parts = [list(chunks(plan.indices(epoch).tolist(), batch)) for plan in everybody]
    assert [sorted(chain(*step)) for step in zip(*parts, strict=True)] == [sorted(step) for step in together]


@given(LENGTHS, SIZES, BATCHES, st.booleans(), EPOCHS)
def test_without_padding_each_sample_is_taken_once_in_equally_many_steps(samples, ranks, batch, shuffle, epoch):
    everybody = plans(samples, ranks, batch_size=batch, shuffle=shuffle, pad=False)
    if everybody is None:
        assert samples < ranks
        return
    assert len({plan.steps for plan in everybody}) == 1
    parts = [[plan.indices(epoch)[plan.batch(step)].tolist() for step in range(plan.steps)] for plan in everybody]
    assert sorted(chain(*chain(*parts))) == list(range(samples))
    for step in zip(*parts, strict=True):
        sizes = {len(batch) for batch in step}
        assert max(sizes) - min(sizes) <= 1
        assert 1 <= min(sizes) <= max(sizes) <= (batch or 1) + 1
    assert everybody[0].padded == everybody[0].dropped == 0


@given(LENGTHS, SIZES, BATCHES, st.booleans(), st.booleans(), EPOCHS, st.data())
def test_what_is_left_of_an_epoch_is_dealt_out_like_a_whole_one(samples, ranks, batch, drop, pad, epoch, data):
    everybody = plans(samples, ranks, batch_size=batch, shuffle=True, drop_remainder=drop, pad=pad)
    if everybody is None:
        return
    order = Plan(Division(0, 1, shuffle=True), samples).indices(epoch).tolist()
    start = data.draw(st.integers(0, samples))
    rest = [replace(plan, start=start) for plan in everybody]
    left = samples - start
    parts = [[plan.indices(epoch)[plan.batch(step)].tolist() for step in range(plan.steps)] for plan in rest]
    times = Counter(chain(*chain(*parts)))
    padded, dropped = rest[0].padded, rest[0].dropped
    expected = Counter(order[start : samples - dropped])
    expected.update(order[(start + left + place) % samples] for place in range(padded))
    assert times == expected
    assert padded < ranks
    assert pad or padded == 0 or left < ranks
    for step in range(rest[0].steps + 1):
        done = rest[0].done(step)
        assert {plan.done(step) for plan in rest} == {done}
        taken = Counter(chain(*chain(*(part[:step] for part in parts))))
        if step < rest[0].steps:
            assert taken == Counter(order[start:done])
        else:
            assert done == samples


def test_an_order_depends_on_seed_and_epoch_alone_and_never_changes():
    def order(seed, epoch, ranks=1):
        return Plan(Division(0, ranks, shuffle=True, seed=seed), 10).indices(epoch).tolist()

    orders = [order(seed, epoch) for seed in (0, 1, 2**32) for epoch in (0, 1)]
    assert len(set(map(tuple, orders))) == len(orders)
    assert order(0, 0, ranks=2) == order(0, 0)[::2]
    assert order(42, 3) == [7, 6, 8, 1, 2, 5, 3, 9, 0, 4]


@given(LENGTHS, SIZES, BATCHES, st.integers(0, 20), SEEDS, EPOCHS, st.booleans())
def test_a_stream_is_dealt_out_as_if_its_length_were_known(samples, ranks, batch, buffer, seed, epoch, drop):
    parts = [
        list(deal(range(samples), StreamPlan(Division(rank, ranks, batch, buffer, seed, drop)), epoch))
        for rank in range(ranks)
    ]
    assert len({len(part) for part in parts}) == 1
    times = Counter(index for part in parts for index in part)
    if drop:
        assert set(times.values()) <= {1}
        assert len(times) == samples - samples % (ranks * (batch or 1))
    else:
        assert set(times) == set(range(samples))
        assert times.total() - samples == -samples % ranks
    if not buffer:
        together = [index for round_ in zip(*parts, strict=True) for index in round_]
        assert together[: len(times)] == list(range(len(times)))


@given(LENGTHS, st.integers(1, 30))
def test_a_shuffled_stream_has_the_same_items(samples, buffer):
    items = list(shuffled(range(samples), buffer, generator(0, 0)))
    assert sorted(items) == list(range(samples))
    assert all(item < place + buffer for place, item in enumerate(items))


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"seed": 0.5}, {"shuffle": -1}, {"shuffle": "yes"}, {"batch_size": 0}])
def test_impossible_settings_are_refused_by_name(wrong):
    (name, value), *_ = wrong.items()
    with pytest.raises(UsageError, match=f"{name}={value!r} is not a whole number"):
        Division(0, 2, **wrong)
