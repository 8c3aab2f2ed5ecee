"""The loaders of each framework deal out what is left of an epoch to other ranks, here all in one process."""

from __future__ import annotations

import logging
import os
from itertools import chain
from multiprocessing import resource_tracker

import numpy as np
import pytest

torch = pytest.importorskip("torch")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from small_datasets import Numbers  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

import distrun.elastic  # noqa: E402
from distrun.data import shard  # noqa: E402
from distrun.data.elastic_sampler import ElasticSampler  # noqa: E402
from distrun.data.plan import Division, Plan, StreamPlan  # noqa: E402
from distrun.data.position import Position  # noqa: E402
from distrun.data.torch_data import DatasetSamples, DatasetStream, Loader  # noqa: E402
from distrun.errors import UsageError  # noqa: E402

pytestmark = pytest.mark.gate

N = 43
ORDER = Plan(Division(0, 1, shuffle=True, seed=3), N)


class Counting(IterableDataset):
    def __iter__(self):
        return iter(range(N))


@pytest.fixture(autouse=True)
def _one_rank():
    distrun.init()
    yield
    distrun.shutdown()
    resource_tracker._resource_tracker._stop()  # a process of multiprocessing's, which spawned workers have needed


def loader(rank, ranks, dataset=None, pad=False, **options):
    division = Division(rank, ranks, 4, shuffle=True, seed=3, pad=pad)
    return Loader(DatasetSamples(dataset or Numbers(N), Plan(division, N)), None, options)


def step(iterators):
    """Return what all ranks take in one step."""
    return [value for iterator in iterators for value in np.ravel(next(iterator)).tolist()]


SPAWNED = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"}
OPTIONS = [
    {},
    {"num_workers": 1},
    {"num_workers": 2, "persistent_workers": True},
    pytest.param(SPAWNED, marks=pytest.mark.full, id=str(SPAWNED)),  # imports torch again
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_loader_with_workers_goes_on_with_what_was_not_done(options):
    everybody = [loader(rank, 3, **options) for rank in range(3)]
    iterators = [iter(mine) for mine in everybody]
    seen = []
    for _ in range(2):
        seen += step(iterators)
        for mine in everybody:
            mine.advance()
    next(iterators[1])  # workers have fetched more still
    for rank, mine in enumerate(everybody[:2]):
        mine.position.redeal(rank, 2)
        mine.load_state_dict(everybody[0].state_dict())
        assert len(mine) == 3
    with pytest.raises(UsageError, match="iterate over the data again"):
        next(iterators[0])
    rest = [[batch.tolist() for batch in mine] for mine in everybody[:2]]
    assert [[len(batch) for batch in batches] for batches in rest] == [[4, 4, 2], [4, 4, 1]]
    assert sorted(chain(seen, *chain(*rest))) == list(range(N))
    again = [[batch.tolist() for batch in mine] for mine in everybody[:2]]
    assert sorted(chain(*chain(*again))) == list(range(N))
    assert everybody[0].epoch == 1


def test_a_stream_in_a_worker_goes_on_too():
    def make(rank, ranks):
        division = Division(rank, ranks, 4, shuffle=10, seed=3)
        return Loader(DatasetStream(Counting(), division), None, {"num_workers": 1, "persistent_workers": True})

    everybody = [make(rank, 2) for rank in range(2)]
    iterators = [iter(mine) for mine in everybody]
    seen = step(iterators)
    for mine in everybody:
        mine.advance()
    alone = everybody[1]
    alone.position.redeal(0, 1)
    rest = [batch.tolist() for batch in alone]
    assert sorted(chain(seen, *rest)) == list(range(N))


def test_a_stream_in_several_workers_is_refused_in_the_midst_of_an_epoch(monkeypatch, caplog):
    mine = shard(Counting(), 4, num_workers=2)
    mine.load_state_dict({"epoch": 0, "done": 8})
    with pytest.raises(UsageError, match=r"what each of 2 workers has read.*give shard num_workers=1"):
        next(iter(mine))
    assert not caplog.messages
    monkeypatch.setattr("distrun.runtime.world.regroup.is_elastic", lambda: True)
    monkeypatch.setattr(logging.getLogger("distrun"), "propagate", True)
    shard(Counting(), 4, num_workers=2)
    shard(iter(range(9)), 4)
    remedies = {message.partition(": give shard ")[2] for message in caplog.messages}
    assert remedies == {"num_workers=1", "an iterable that starts again each time"}


def sampler(rank, ranks, batch_size=None):
    made = ElasticSampler(Numbers(N), seed=3, batch_size=batch_size)
    made._position.redeal(rank, ranks)
    return made


def test_the_sampler_has_horovods_names_and_pads():
    mine = sampler(1, 4)
    assert (mine.epoch, mine.processed_num, mine.rank, mine.num_replicas) == (0, 0, 1, 4)
    assert (len(mine), mine.num_samples, mine.total_size) == (11, 11, 44)
    assert mine.remaining_indices == ORDER.indices(0).tolist()
    assert list(mine) == list(mine) == ORDER.indices(0).tolist()[1::4]
    mine.record_batch(0, 5)
    assert mine.state_dict() == {"epoch": 0, "processed_num": 20}
    other = sampler(0, 2)
    other.load_state_dict(mine.state_dict())
    assert other.remaining_indices == ORDER.indices(0).tolist()[20:]
    assert len(other) == 12
    other.reset()
    assert (other.num_replicas, len(other)) == (1, 23)
    other.set_epoch(0)  # which others have come into
    assert other.processed_num == 20
    other.record_batch(0, 23)
    assert other.processed_num == N
    other.set_epoch(1)
    assert (other.processed_num, list(other)) == (0, ORDER.indices(1).tolist())
    assert list(ElasticSampler(Numbers(N), shuffle=False)) == list(range(N))


def test_what_the_sampler_recorded_since_the_last_boundary_is_not_done():
    mine = sampler(0, 2)
    mine.advance()
    mine.record_batch(0, 4)
    mine.record_batch(1, 4)
    assert (mine.processed_num, mine.state_dict()["processed_num"]) == (16, 0)
    mine.advance()
    mine.record_batch(2, 4)
    assert (mine.processed_num, mine.state_dict()["processed_num"]) == (24, 16)
    mine._position.redeal(0, 3)
    assert mine.processed_num == 16


def test_a_sampler_divides_what_is_left_when_its_state_is_synchronised():
    mine = sampler(0, 1)
    state = distrun.elastic.ObjectState(sampler=mine)
    state.sync()
    mine.set_epoch(1)
    for batch in range(3):
        mine.record_batch(batch, 4)
    state.commit()
    state.sync()
    assert list(mine) == ORDER.indices(1).tolist()[12:]
    assert (len(mine), mine.processed_num) == (N - 12, 12)


def test_a_sampler_of_batches_takes_every_sample_once():
    seen = []
    for generation, ranks in enumerate([3, 2, 4]):
        everybody = [sampler(rank, ranks, batch_size=3) for rank in range(ranks)]
        for mine in everybody:
            mine.load_state_dict({"epoch": 0, "processed_num": len(seen)})
        loaders = [DataLoader(Numbers(N), batch_sampler=mine, num_workers=generation % 2) for mine in everybody]
        assert len({len(mine) for mine in loaders}) == 1
        iterators = [iter(mine) for mine in loaders]
        for number in range(2 if generation < 2 else len(loaders[0])):
            seen += step(iterators)
            for mine in everybody:
                mine.record_batch(number, 3)
    assert sorted(seen) == list(range(N))
    assert everybody[0].processed_num == N


def elastic_dataset(rank, ranks, *, known=True, **how):
    import tensorflow as tf

    from distrun.data import tf_data

    data = tf.data.Dataset.range(N)
    division = Division(rank, ranks, 4, **how)
    plan = Plan(division, N) if known else StreamPlan(division)
    return tf_data.elastic(data if known else data.filter(lambda _: True), plan, Position())


@pytest.mark.parametrize(
    "how", [{"pad": False}, {"pad": False, "shuffle": True}, {"shuffle": 7, "known": False}], ids=str
)
def test_a_tf_dataset_goes_on_with_what_was_not_done(how):
    pytest.importorskip("tensorflow")
    everybody = [elastic_dataset(rank, 3, **how) for rank in range(3)]
    everybody[0].advance()  # no batch was fetched: no step
    iterators = [iter(mine) for mine in everybody]
    seen = []
    for _ in range(2):
        seen += step(iterators)
        for mine in everybody:
            mine.advance()
    assert everybody[0].position.done == 24
    next(iterators[1])
    ranks = 2
    everybody = [*everybody[1:], elastic_dataset(2, 3, **how)][:ranks]
    state = everybody[0].state_dict()
    for rank, mine in enumerate(everybody):
        mine.position.redeal(rank, ranks)
        mine.load_state_dict(state)
    rest = [[batch.tolist() for batch in mine.as_numpy_iterator()] for mine in everybody]
    together = sorted(chain(seen, *chain(*rest)))
    if "known" in how:
        assert len({len(batches) for batches in rest}) == 1
        assert (sorted(set(together)), len(together)) == (list(range(N)), N + 1)
    else:
        assert [[len(batch) for batch in batches] for batches in rest] == [[4, 4, 2], [4, 4, 1]]
        assert together == list(range(N))
    for mine in everybody:
        mine.set_epoch(1)
    again = [[batch.tolist() for batch in mine.as_numpy_iterator()] for mine in everybody]
    assert sorted(set(chain(*chain(*again)))) == list(range(N))
    if "shuffle" in how:
        assert again[0] != rest[0]


def test_the_last_batch_of_a_tf_dataset_may_have_one_more():
    tf = pytest.importorskip("tensorflow")
    from distrun.data import tf_data

    everybody = [elastic_dataset(rank, 3, pad=False) for rank in range(3)]
    for mine in everybody:
        mine.load_state_dict({"epoch": 0, "done": 5})
    assert [[len(batch) for batch in mine] for mine in everybody] == [[4, 4, 5], [4, 4, 5], [4, 4, 4]]
    data = tf.data.Dataset.range(13)
    static = [tf_data.divided(data, Plan(Division(rank, 3, 4, pad=False), 13)) for rank in range(3)]
    assert [[len(batch) for batch in mine] for mine in static] == [[5], [4], [4]]
    assert [len(mine) for mine in static] == [1, 1, 1]


def test_tf_datasets_that_cannot_be_dealt_out_anew_are_refused():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.range(N)
    with pytest.raises(UsageError, match="shuffles again in each iteration"):
        shard(data.shuffle(5, seed=2), 4, elastic=True)
    assert shard(data.shuffle(5, seed=2, reshuffle_each_iteration=False), 4, elastic=True).position.epoch == 0
    assert shard(data, 4).position is None


def test_pad_is_refused_where_it_has_no_meaning():
    with pytest.raises(UsageError, match="pad=False for data of unknown length"):
        shard(iter(range(9)), 4, pad=False)
    with pytest.raises(UsageError, match="pad=False for data of unknown length"):
        shard(Counting(), 4, pad=False)
