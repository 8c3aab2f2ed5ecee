"""Positions: whatever ranks come and go, at whatever step, every sample of an epoch is done once."""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, strategies as st

from distrun.data.plan import Division, Plan, StreamPlan
from distrun.data.position import Position
from distrun.data.shards import Batches, Samples, Stream
from distrun.data.structures import take
from distrun.elastic import ObjectState
from distrun.errors import MismatchError, UsageError

HISTORIES = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 12), st.integers(0, 63)), min_size=1, max_size=8)
"""Generations: how many ranks, the steps that they do, and which of them have fetched one more batch at the end."""


class Ranks:
    """All ranks of an elastic job in one process: each generation keeps some of the one before."""

    def __init__(self, make):
        self._make = make
        self.members = []

    def regroup(self, size, donor=0):
        """Survivors and newcomers get the position of a survivor, as the sync of a state would do it."""
        state = self.members[donor].state_dict() if self.members else None
        self.members = self.members[:size]
        for rank, member in enumerate(self.members):
            member.position.redeal(rank, size)
        self.members += [self._make(rank, size) for rank in range(len(self.members), size)]
        if state is not None:
            for member in self.members:
                member.load_state_dict(state)


def trained(ranks, history, epochs, samples):
    """Train that many epochs through a history; return for each how often each sample was done, and what was padded."""
    done = [Counter() for _ in range(epochs)]
    epoch, generations = 0, list(history)
    padded = [0] * epochs
    while epoch < epochs:
        size, steps, ahead = generations.pop(0) if generations else (2, 10**9, 0)
        ranks.regroup(min(size, samples), donor=0)
        while epoch < epochs and steps >= 0:
            for member in ranks.members:
                member.set_epoch(epoch)
            iterators = [iter(member) for member in ranks.members]
            while steps > 0 and (batches := [next(iterator, None) for iterator in iterators])[0] is not None:
                assert all(batch is not None for batch in batches)
                for member, batch in zip(ranks.members, batches, strict=True):
                    done[epoch].update(np.ravel(batch).tolist())
                    member.advance()
                steps -= 1
                position = ranks.members[0].position
                assert all(member.state_dict() == position.state_dict() for member in ranks.members)
                if position.is_over:
                    padded[epoch] += getattr(position.plan, "padded", None) or 0
            if steps <= 0 and not ranks.members[0].position.is_over:
                for rank, iterator in enumerate(iterators):  # step k+1 begins on some of them
                    if ahead >> rank & 1:
                        next(iterator, None)
                break
            epoch += 1
    return done, padded


@given(st.integers(1, 80), st.integers(1, 5), HISTORIES, st.booleans(), st.booleans())
def test_every_sample_is_done_once_in_every_epoch_whatever_ranks_come_and_go(samples, batch, history, shuffle, pad):
    def make(rank, size):
        division = Division(rank, size, batch, shuffle, 3, pad=pad)
        return Batches(partial(take, np.arange(samples)), Plan(division, samples), None)

    done, padded = trained(Ranks(make), history, 3, samples)
    for times, extra in zip(done, padded, strict=True):
        assert set(times) == set(range(samples))
        assert times.total() == samples + extra
        if not pad and samples % batch == 0 and all(size <= batch for size, *_ in [*history, (2, 0, 0)]):
            assert extra == 0  # there are never fewer samples left than ranks


@given(st.integers(1, 60), HISTORIES)
def test_so_it_is_in_a_stream_of_unknown_length(samples, history):
    def make(rank, size):
        return Stream(dict.fromkeys(np.arange(samples)), Division(rank, size, 2, 5, 3), None)

    done, _ = trained(Ranks(make), history, 2, samples)
    for times in done:
        assert set(times) == set(range(samples))


def batches(samples=24, rank=0, ranks=2, **how):
    """Return batches of 4 of the numbers up to `samples`."""
    return Batches(partial(take, np.arange(samples)), Plan(Division(rank, ranks, 4, **how), samples), None)


def test_what_is_fetched_ahead_is_not_done():
    mine = batches()
    iterator = iter(mine)
    next(iterator)
    assert mine.position.done == 0
    mine.advance()
    next(iterator)
    assert (mine.position.done, mine.position.taken) == (8, 16)
    mine.position.per_step = 1  # as in `fit`, where the loop is not the script's
    next(iterator)
    mine.advance()
    assert mine.position.done == 16


def test_a_step_may_take_several_batches():
    mine = batches()
    for number, _ in enumerate(mine, 1):
        if number == 2:
            mine.advance()
            assert mine.position.done == 16
            break
    mine.advance(1)
    assert mine.position.is_over


def test_boundaries_that_are_no_steps_do_not_count():
    mine = batches()
    mine.advance()
    for _ in mine:
        mine.advance()
        mine.advance()
    mine.advance()
    assert (mine.position.epoch, mine.position.done, mine.position.is_over) == (0, 24, True)


def test_the_batches_of_the_rest_are_counted_from_there():
    mine = batches(shuffle=True)
    whole = [batch.tolist() for batch in mine]
    again = batches(shuffle=True)
    again.load_state_dict({"epoch": 0, "done": 8})
    assert len(again) == 2
    assert [again[0].tolist(), again[1].tolist()] == whole[1:]
    next(iter(again))  # Keras has a look
    assert [batch.tolist() for batch in again] == whole[1:]
    assert len(list(again)) == 3
    assert (again.epoch, again.position.epoch) == (1, 1)


def test_an_epoch_that_is_over_is_empty_if_it_is_named_and_skipped_otherwise():
    over = {"epoch": 4, "done": 24, "is_over": True}
    mine = batches()
    mine.load_state_dict(over)
    assert mine.position.next_epoch == 5
    mine.set_epoch(4)
    assert list(mine) == []
    assert len(list(mine)) == 3
    assert mine.epoch == 5
    mine.load_state_dict(over)
    assert len(list(mine)) == 3
    assert mine.epoch == 5


def test_without_an_elastic_job_every_iteration_is_another_epoch():
    mine = batches(shuffle=True)
    for epoch in range(3):
        for _ in mine:
            break
        assert mine.epoch == epoch
    mine.set_epoch(1)
    first = [batch.tolist() for batch in mine]
    mine.set_epoch(1)
    assert [batch.tolist() for batch in mine] == first


def test_an_iterator_of_other_ranks_is_refused():
    mine = batches()
    iterator = iter(mine)
    next(iterator)
    mine.position.redeal(0, 3)
    with pytest.raises(UsageError, match=r"belongs to ranks that are no more.*iterate over the data again"):
        next(iterator)


def test_a_generator_cannot_be_dealt_out_anew():
    mine = Stream(iter(range(20)), Division(0, 2, 4), None)
    next(iter(mine))
    mine.position.redeal(0, 3)
    with pytest.raises(UsageError, match=r"can be gone through once.*an iterable that starts again"):
        next(iter(mine))


def test_a_position_of_other_data_is_refused():
    with pytest.raises(MismatchError, match=r"24 samples in their order cannot be one in 25 samples in shuffle=True"):
        batches(25, shuffle=True).load_state_dict(batches().state_dict())


def test_a_position_may_be_there_before_its_data():
    position = Position()
    position.load_state_dict({"epoch": 2, "done": 16})
    mine = Samples(list(range(24)), Plan(Division(1, 2), 24), position)
    assert (mine.epoch, list(mine)) == (2, [17, 19, 21, 23])


def test_a_position_counts_samples_of_a_stream():
    position = Position()
    position.bind(StreamPlan(Division(0, 3, 2)))
    position.advance(4)
    assert position.state_dict()["done"] == 24
    assert replace(position.plan, start=0).done(1) == 6


def test_a_state_advances_its_data_and_sends_their_place():
    mine, epoch = batches(), 0
    state = ObjectState(batches=mine, epoch=epoch)
    for _ in state.batches:
        state.advance()
        break
    state.commit()
    assert mine.position.done == 8
    mine.advance(1)
    state.restore()
    assert (mine.position.done, len(mine)) == (8, 2)
    part = state._parts["batches"]
    other = ObjectState(batches=batches(), epoch=epoch)
    other._parts["batches"].adopt(part.describe())
    other._parts["batches"].complete()
    assert [batch.tolist() for batch in other.batches] == [[8, 10, 12, 14], [16, 18, 20, 22]]
