"""Each kind of data on two ranks: everything is taken once, in the common order, in equal steps."""

import logging
import os

os.environ["DISTRUN_INPUT_WAIT"] = "0.01"

import numpy as np
import tensorflow as tf
import torch
from checking import check, dealt, run_checks
from expecting import raises
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import distrun
import distrun.data
from distrun.data.plan import generator
from distrun.errors import MismatchError, UsageError

distrun.init()
torch.set_num_threads(1)
RANK, SIZE = distrun.rank(), distrun.size()
N = 41
"""Divided by 2 ranks, one sample is left."""


def flat(batches):
    return [int(value) for batch in batches for value in np.ravel(batch)]


def order(epoch, seed=5, samples=N):
    """The order of an epoch, as documented, with its padding."""
    shuffled = generator(seed, epoch).permutation(samples).tolist()
    return shuffled + shuffled[: -samples % SIZE]


class Squares(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        return torch.tensor(index), torch.tensor(index**2)


class Counting(IterableDataset):
    def __iter__(self):
        return iter(range(N))


# Arrays ---------------------------------------------------------------------------------------------------------------


@check
def arrays():
    x, labels = distrun.data.shard((np.arange(N), {"y": np.arange(N) * 10}))
    assert (labels["y"] == x * 10).all()
    assert dealt(x) == [*range(N), 0]
    shuffled = distrun.data.shard(np.arange(N), shuffle=True, seed=5)
    assert dealt(shuffled) == order(0)
    assert len(distrun.data.shard(torch.arange(N), drop_remainder=True)) == 20
    assert isinstance(distrun.data.shard(torch.arange(N)), torch.Tensor)
    assert distrun.data.shard(tf.range(N)).tolist() == distrun.data.shard(np.arange(N)).tolist()


@check
def batches_of_arrays():
    data = {"x": np.arange(N), "y": np.eye(N)}
    batches = distrun.data.shard(data, batch_size=4, shuffle=True, seed=5)
    assert (batches.padded, batches.dropped, len(batches)) == (1, 0, 6)
    assert [len(batch["x"]) for batch in batches] == [4] * 5 + [1]  # this was epoch 0
    for epoch in (1, 2):
        mine = list(batches)
        assert batches.epoch == epoch
        assert all((batch["y"].argmax(1) == batch["x"]).all() for batch in mine)
        assert dealt(flat(batch["x"] for batch in mine)) == order(epoch)
        assert (batches[2]["x"] == mine[2]["x"]).all()
        assert (batches[-1]["x"] == mine[-1]["x"]).all()
    batches.set_epoch(0)
    assert dealt(flat(batch["x"] for batch in batches)) == order(0)
    whole = distrun.data.shard(np.arange(N), batch_size=4, drop_remainder=True)
    assert (whole.padded, whole.dropped, len(whole)) == (0, 1, 5)
    assert dealt(flat(whole)) == list(range(40))
    with raises(IndexError):
        whole[5]


@check
def ranks_batches_are_the_batch_of_one_process():
    mine = distrun.data.shard(np.arange(N), batch_size=3, shuffle=True, seed=5)
    for step, batch in enumerate(mine):
        together = np.concatenate(distrun.allgather_object(batch))
        assert sorted(together) == sorted(order(0)[step * 3 * SIZE : (step + 1) * 3 * SIZE])


# Sequences and streams ------------------------------------------------------------------------------------------------


@check
def sequences():
    mine = distrun.data.shard(list(range(N)), shuffle=True, seed=5)
    assert (len(mine), mine.padded) == (21, 1)
    assert [dealt(mine), dealt(mine)] == [order(0), order(1)]
    assert mine[:3] == [mine[0], mine[1], mine[2]]
    batches = distrun.data.shard([(i, {"text": f"word {i}"}) for i in range(N)], batch_size=5)
    numbers, words = batches[1]
    assert words["text"].tolist() == [f"word {i}" for i in numbers]
    assert dealt(flat(numbers for numbers, _ in batches)) == [*range(N), 0]


@check
def streams():
    mine = distrun.data.shard(x for x in range(N))
    assert mine.padded is None
    assert dealt(mine) == [*range(N), N - 1]
    again = distrun.data.shard(range(N).__iter__() for _ in range(1))
    assert len([*again]) == 1  # a stream of one sample, which both ranks get
    batches = distrun.data.shard(map(np.float32, range(N)), batch_size=4)
    batched = [*iter(batches)]
    assert [len(batch) for batch in batched] == [4] * 5 + [1]
    assert dealt(flat(batched)) == [*range(N), N - 1]
    whole = distrun.data.shard(map(np.float32, range(N)), batch_size=4, drop_remainder=True)
    assert dealt(flat(whole)) == list(range(40))


@check
def shuffled_streams():
    assert_epochs_have_their_orders(distrun.data.shard(dict.fromkeys(range(N)).keys(), shuffle=10, seed=5))


def assert_epochs_have_their_orders(mine):
    epochs = [dealt(flat(mine)), dealt(flat(mine))]
    assert epochs[0] != epochs[1]
    assert all(sorted(set(epoch)) == list(range(N)) and len(epoch) == 42 for epoch in epochs)
    mine.set_epoch(0)
    assert dealt(flat(mine)) == epochs[0]


# tf.data --------------------------------------------------------------------------------------------------------------


@check
def tf_datasets():
    data = tf.data.Dataset.range(N)
    with raises(UsageError, "shuffles without a seed", "let shard shuffle"):
        distrun.data.shard(data.shuffle(10).batch(2))
    mine = distrun.data.shard(data)
    assert (mine.padded, mine.dropped, len(mine)) == (1, 0, 21)
    assert dealt(mine) == [*range(N), 0]
    batches = distrun.data.shard(data, batch_size=4)
    assert (len(batches), [len(batch) for batch in batches]) == (6, [4] * 5 + [1])
    assert dealt(flat(batches)) == [*range(N), 0]
    whole = distrun.data.shard(data, batch_size=4, drop_remainder=True)
    assert (whole.element_spec.shape, whole.dropped, len(whole)) == ((4,), 1, 5)
    assert dealt(flat(whole)) == list(range(40))
    endless = distrun.data.shard(data.repeat(), batch_size=4)
    assert dealt(flat(endless.take(20))) == [i % N for i in range(160)]


@check
def shuffled_tf_datasets():
    tf.random.set_seed(RANK)  # for dropout, say; the order must not depend on it
    assert_epochs_have_their_orders(distrun.data.shard(tf.data.Dataset.range(N), batch_size=4, shuffle=True, seed=5))


@check
def tf_datasets_of_unknown_length():
    data = tf.data.Dataset.range(N).filter(lambda _: True).map(lambda i: (i, {"y": tf.repeat(i, i)}))
    mine = list(distrun.data.shard(data))
    assert all(len(sample["y"]) == int(number) for number, sample in mine)  # of different shapes
    assert dealt([number for number, _ in mine]) == [*range(N), N - 1]
    numbers = data.map(lambda i, _: i)
    assert dealt(flat(distrun.data.shard(numbers, batch_size=4))) == [*range(N), N - 1]
    assert dealt(flat(distrun.data.shard(numbers, batch_size=4, drop_remainder=True))) == list(range(40))
    shuffled = distrun.data.shard(numbers, shuffle=10)
    assert sorted(set(dealt(shuffled))) == list(range(N))
    with raises(UsageError, "shuffle=True", "10_000"):
        distrun.data.shard(numbers, shuffle=True)


# torch ----------------------------------------------------------------------------------------------------------------


@check
def torch_datasets():
    mine = distrun.data.shard(Squares(), shuffle=True, seed=5)
    for epoch in (0, 1):
        mine.set_epoch(epoch)
        batches = list(DataLoader(mine, batch_size=4))
        assert dealt(flat(x for x, _ in batches)) == order(epoch)
        assert all((squares == x**2).all() for x, squares in batches)


@check
def torch_loaders():
    loader = distrun.data.shard(Squares(), batch_size=4, shuffle=True, seed=5)
    assert isinstance(loader, DataLoader)
    assert (loader.padded, loader.dropped, len(loader)) == (1, 0, 6)
    assert [dealt(flat(x for x, _ in loader)), dealt(flat(x for x, _ in loader))] == [order(0), order(1)]
    loader.set_epoch(0)
    assert dealt(flat(x for x, _ in loader)) == order(0)
    whole = distrun.data.shard(TensorDataset(torch.arange(N)), batch_size=4, drop_remainder=True)
    assert (whole.dropped, len(whole)) == (1, 5)
    assert dealt(flat(x for (x,) in whole)) == list(range(40))


@check
def torch_streams():
    assert_epochs_have_their_orders(distrun.data.shard(Counting(), batch_size=4, shuffle=10, seed=5))
    assert dealt(flat(DataLoader(distrun.data.shard(Counting()), batch_size=4))) == [*range(N), N - 1]


@check
def torch_workers_that_live_on_see_each_epoch():
    options = {"num_workers": 1, "persistent_workers": True}
    for data in (Squares(), Counting()):
        loader = distrun.data.shard(data, batch_size=4, shuffle=10, seed=5, **options)
        epochs = [dealt(flat(batch[0] if isinstance(batch, list) else batch for batch in loader)) for _ in range(2)]
        assert epochs[0] != epochs[1]
        assert all(sorted(set(epoch)) == list(range(N)) for epoch in epochs)


# Refused --------------------------------------------------------------------------------------------------------------


@check
def different_lengths_on_different_ranks():
    for mine in (np.arange(N - RANK), list(range(N - RANK)), tf.data.Dataset.range(N - RANK)):
        with raises(MismatchError, "41 samples on rank 0; 40 samples on rank 1"):
            distrun.data.shard(mine)
    with raises(MismatchError, "seed=0 on rank 0; seed=1 on rank 1"):
        distrun.data.shard(np.arange(N), seed=RANK)
    with raises(MismatchError, "shuffle()", "on rank 0", "on rank 1"):
        distrun.data.shard(tf.data.Dataset.range(N).shuffle(5, seed=7 + RANK))


@check
def impossible_data():
    with raises(UsageError, "1 sample cannot be divided among 2 ranks"):
        distrun.data.shard([1])
    with raises(UsageError, "0 samples"):
        distrun.data.shard(np.zeros((0, 3)))
    with raises(UsageError, "different lengths (3, 4)"):
        distrun.data.shard((np.zeros(3), np.zeros(4)))
    with raises(UsageError, "array without rows"):
        distrun.data.shard((np.zeros(3), np.float32(1)))
    with raises(UsageError, "a list in it"):
        distrun.data.shard((np.zeros(3), [1, 2, 3]))
    for wrong in (0, -1, 1.5, True, "32"):
        with raises(UsageError, f"batch_size={wrong!r}", ">= 1"):
            distrun.data.shard(np.zeros(3), wrong)
    with raises(UsageError, "drop_remainder=True leaves nothing of 5 samples"):
        distrun.data.shard(np.zeros(5), 4, drop_remainder=True)
    with raises(UsageError, "data of type int cannot be divided"):
        distrun.data.shard(3)
    with raises(UsageError, "data of type str"):
        distrun.data.shard("text")
    with raises(UsageError, "num_workers: only for a torch Dataset"):
        distrun.data.shard(np.zeros(5), 4, num_workers=3)
    with raises(UsageError, "num_workers: without a batch_size"):
        distrun.data.shard(Squares(), num_workers=3)
    with raises(UsageError, "a DataLoader has made its batches already"):
        distrun.data.shard(DataLoader(Squares()))
    with raises(UsageError, "samples cannot be put together"):
        list(distrun.data.shard([np.zeros(i) for i in range(4)], 2))
    with raises(UsageError, "shuffle=True", "10_000"):
        distrun.data.shard(iter(range(9)), shuffle=True)


# Waiting --------------------------------------------------------------------------------------------------------------

WARNINGS: list[str] = []


class Recorder(logging.Handler):
    def emit(self, record):
        WARNINGS.append(record.getMessage())


logging.getLogger("distrun").addHandler(Recorder())


def slowly(values):
    """Values that take far longer to get than to use."""
    for value in values:
        for _ in range(20000):
            pass
        yield value


@check
def waiting_for_a_python_iterable():
    WARNINGS.clear()
    for _ in distrun.data.watch(list(range(45))):
        pass
    assert distrun.data.watch(slowly(range(45))).__class__.__name__ == "generator"
    for _ in distrun.data.watch(slowly(range(45))):
        pass
    assert WARNINGS[-1].startswith(f"rank {RANK} waited "), WARNINGS
    assert "over 20 steps; limit 1%)" in WARNINGS[-1]


@check
def waiting_for_a_tf_dataset():
    WARNINGS.clear()
    data = tf.data.Dataset.range(45).map(
        lambda i: tf.reduce_sum(tf.random.normal([100_000])) * 0 + tf.cast(i, tf.float32)
    )
    watched = distrun.data.watch(data)
    assert len(watched) == 45
    assert flat(watched) == list(range(45))
    assert len(WARNINGS) == 1, WARNINGS
    assert WARNINGS[0].startswith(f"rank {RANK} waited "), WARNINGS
    flat(watched)
    assert len(WARNINGS) == 2  # once in an epoch


@check
def waiting_may_be_off_or_wrong():
    data = [1]
    os.environ["DISTRUN_INPUT_WAIT"] = "0"
    assert distrun.data.watch(data) is data
    for wrong in ("1", "-0.1", "much"):
        os.environ["DISTRUN_INPUT_WAIT"] = wrong
        with raises(UsageError, f"DISTRUN_INPUT_WAIT='{wrong}'", "from 0 (off) to below 1"):
            distrun.data.watch(data)
    os.environ["DISTRUN_INPUT_WAIT"] = "0.01"


run_checks()
import fits  # noqa: E402, F401  # checks what Keras does in the same processes, which saves seconds of imports
