"""Histories of pushes on one server, and servers that die at every place of an update."""

import os

import numpy as np
import pytest
from in_process.calls import DEADLINE, started as in_thread

from distrun.errors import MismatchError
from distrun.methods.servers import memory, store as store_module
from distrun.methods.servers.clocks import LEFT
from distrun.methods.servers.layout import Layout, Parameter
from distrun.methods.servers.rules import Rule
from distrun.methods.servers.store import Push, Rows, Store
from distrun.methods.servers.stores import Stores

ADAM = Rule(
    "torch.Adam",
    {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "is_decoupled": False, "maximize": False},
)
PLAIN = Rule("torch.SGD", {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0, "delay": 0})
ADAGRAD = Rule("torch.Adagrad", {"weight_decay": 0.0, "lr_decay": 0.1, "eps": 1e-10, "initial": 0.5})


@pytest.fixture
def fd():
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(memory, "CHUNK", 8)
    monkeypatch.setattr(store_module, "CHUNK", 8)


def layout_of(rule=PLAIN, synchronous=False, workers=2):
    parameters = (Parameter("a", (3, 5), 0), Parameter("b", (7,), 0), Parameter("e", (6, 3), 0, is_sparse=True))
    return Layout(parameters, (rule,), workers, synchronous)


def opened(fd, layout):
    """The store in a memory: a new one, or that of a server that has died."""

    def make(share):
        sizes = (layout.workers, len(share.parts), share.size, layout.slots)
        found = memory.scan(fd)
        if found:
            return memory.Block(fd, found[0][0], *sizes)
        return memory.create(fd, 0, layout.to_json(), *sizes)

    return Store(layout, 1, 0, make)


def started(fd, layout):
    store = opened(fd, layout)
    store.set(lambda arrays: arrays[0].__setitem__(slice(None), np.arange(arrays.shape[1])))
    return store


def push(seed, rows=(1, 4), present=(True, True)):
    random = np.random.default_rng(seed)
    values = random.standard_normal((len(rows), 3)).astype(np.float32)
    dense = random.standard_normal(22).astype(np.float32)
    return Push(np.array([0.1]), np.array(present), dense, (Rows(np.array(rows, np.int64), values),))


def test_a_gradient_is_applied_when_it_arrives(fd):
    store = started(fd, layout_of())
    first = push(1)
    store.push(1, 0, first)
    np.testing.assert_allclose(store.dense, np.arange(22) - 0.1 * first.dense, rtol=1e-6)
    np.testing.assert_allclose(
        store.rows(0, np.array([4, 0])), [[34, 35, 36] - 0.1 * first.tables[0].values[1], [22, 23, 24]], rtol=1e-6
    )
    assert (store.block.version, store.block.clocks) == (1, [0, 1])


def test_what_was_pushed_before_is_not_applied_again(fd):
    store = started(fd, layout_of())
    store.push(0, 0, push(1))
    before = store.block.arrays.copy()
    store.push(0, 0, push(1))
    np.testing.assert_array_equal(store.block.arrays, before)


def test_a_parameter_without_gradient_stays_as_it_is(fd):
    store = started(fd, layout_of(ADAM))
    store.push(0, 0, push(1, rows=(), present=(False, True)))
    np.testing.assert_array_equal(store.dense[:15], np.arange(15))
    assert (store.dense[15:] != np.arange(15, 22)).all()
    assert store.block.steps.tolist() == [0, 1, 0]


def test_synchronous_gradients_are_averaged(fd):
    store = started(fd, layout_of(synchronous=True))
    one, other = push(1, rows=(1, 4)), push(2, rows=(4, 5))
    store.push(1, 0, other)
    np.testing.assert_array_equal(store.dense, np.arange(22))
    store.push(1, 0, other)  # once more, as after a broken connection
    store.push(0, 0, one)
    np.testing.assert_allclose(store.dense, np.arange(22) - 0.05 * (one.dense + other.dense), rtol=1e-5)
    expected = np.arange(22, 40).reshape(6, 3)[[1, 4, 5]].astype(np.float32)
    expected[:2] -= 0.05 * one.tables[0].values
    expected[1:] -= 0.05 * other.tables[0].values
    np.testing.assert_allclose(store.rows(0, np.array([1, 4, 5])), expected, rtol=1e-5)
    assert store.block.clocks == [1, 1]


def test_a_synchronous_step_is_complete_when_the_others_leave(fd):
    store = started(fd, layout_of(synchronous=True))
    one = push(1)
    store.push(0, 0, one)
    store.leave(1)
    np.testing.assert_allclose(store.dense, np.arange(22) - 0.1 * one.dense, rtol=1e-6)
    assert store.block.clocks == [1, LEFT]


def test_a_worker_waits_until_the_slowest_has_come_so_far(fd):
    store = started(fd, layout_of())
    store.push(0, 0, push(1))
    waiting = in_thread(store.await_clock, 1)
    assert not waiting.done()
    store.push(1, 0, push(2))
    waiting.result(DEADLINE)


def test_rows_that_there_are_not_are_refused_and_nothing_is_changed(fd):
    store = started(fd, layout_of())
    with pytest.raises(MismatchError, match="a row of e"):
        store.push(0, 0, push(1, rows=(2, 6)))
    with pytest.raises(MismatchError, match="a row of e"):
        store.rows(0, np.array([-1]))
    assert store.block.version == 0


class Died(BaseException):
    """The process of a server has died."""


class Words:
    """The words of a block, whose process dies at one of its writes."""

    def __init__(self, words, writes_left):
        self._words, self.left = words, writes_left

    def __getitem__(self, index):
        return self._words[index]

    def __setitem__(self, index, value):
        if not self.left:
            raise Died
        self.left -= 1
        self._words[index] = value


@pytest.mark.parametrize(("rule", "synchronous"), [(ADAM, False), (ADAGRAD, True)], ids=["each", "average"])
def test_a_server_that_dies_anywhere_in_an_update_loses_nothing_and_applies_nothing_twice(rule, synchronous):
    layout = layout_of(rule, synchronous)
    history = [(0, 0, 1), (1, 0, 2)]  # worker, step, seed

    def died_after(writes):
        """Run the history on servers, the first of which dies at a write. Return whether it did, and the end."""
        fd = os.memfd_create("test")
        store = started(fd, layout)
        store.block._words = words = Words(store.block._words, writes)
        has_died = False
        pending = list(history)
        answered = []
        while pending:
            worker, step, seed = pending[0]
            try:
                store.push(worker, step, push(seed))
                answered.append(pending.pop(0))
            except Died:
                has_died = True
                store = opened(fd, layout)
                # Who has no answer pushes again: in a synchronous step those are all that have come.
                last = [item for item in answered if synchronous and store.block.clocks[item[0]] <= item[1]]
                for item in last:
                    store.push(item[0], item[1], push(item[2]))
        end = store.block.arrays.copy(), store.block.clocks, store.block.version, store.block.steps.tolist()
        os.close(fd)
        return has_died or words.left == 0, end

    _, expected = died_after(-1)
    writes = 0
    has_died = True
    while has_died:
        has_died, end = died_after(writes)
        np.testing.assert_array_equal(end[0], expected[0], err_msg=f"died after {writes} writes")
        assert end[1:] == expected[1:]
        writes += 1
    assert writes > 20


def test_an_update_that_a_dead_server_has_begun_is_completed_before_another(fd):
    layout = layout_of()
    store = started(fd, layout)
    store.block._words = Words(store.block._words, 20)
    with pytest.raises(Died):
        store.push(0, 0, push(1))
    store = opened(fd, layout)
    other = in_thread(store.push, 1, 0, push(2))
    store.push(0, 0, push(1))
    other.result(DEADLINE)
    total = push(1).dense + push(2).dense
    np.testing.assert_allclose(store.dense, np.arange(22) - 0.1 * total, rtol=1e-5)


def test_a_block_that_was_not_completed_does_not_count(fd):
    os.ftruncate(fd, 4096)
    assert memory.scan(fd) == []
    assert os.fstat(fd).st_size == 0


def restored(fd, store):
    """A new store that goes on with a copy, in a memory of its own."""
    copy = store.copied()

    def make(share):
        layout = store.layout
        sizes = (layout.workers, len(share.parts), share.size, layout.slots)
        block = memory.create(fd, 0, layout.to_json(), *sizes)
        block.restore(copy.version, copy.clocks, copy.steps, copy.arrays)
        return block

    return Store(store.layout, 1, 0, make)


@pytest.fixture
def other_fd():
    descriptor = os.memfd_create("other")
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_copy_goes_on_as_the_original_does(fd, other_fd, synchronous):
    store = started(fd, layout_of(ADAM, synchronous))
    for worker in range(2):
        store.push(worker, 0, push(worker, rows=()))
    copy = restored(other_fd, store)
    for worker in range(2):
        for each in (store, copy):
            each.push(worker, 1, push(10 + worker, rows=()))
    one, other = store.block, copy.block
    np.testing.assert_array_equal(other.arrays, one.arrays)
    assert (other.version, other.clocks, other.steps.tolist()) == (one.version, one.clocks, one.steps.tolist())


def test_nothing_is_copied_before_the_parameters_have_values(fd):
    assert opened(fd, layout_of()).copied() is None


def test_workers_tell_a_copy_of_the_steps_that_it_lacks(fd, other_fd):
    copy = restored(other_fd, started(fd, layout_of()))
    copy.rejoin(0, 5)
    copy.rejoin(0, 3)
    assert copy.block.clocks == [5, 0]
    copy.push(0, 4, push(1))  # its answer was lost, but it had been applied
    assert copy.block.version == 0
    copy.leave(1)
    copy.rejoin(1, 5)
    assert copy.block.clocks == [5, LEFT]


def test_a_step_that_one_worker_knows_to_be_complete_is_not_waited_for_again(fd, other_fd):
    """The old server had applied step 6 and has answered worker 0; the answer to worker 1 was lost with it."""
    copy = restored(other_fd, started(fd, layout_of(synchronous=True)))
    copy.rejoin(1, 6)
    copy.push(1, 6, push(1))
    assert copy.block.clocks == [6, 6]
    copy.rejoin(0, 7)
    copy.await_clock(7)  # worker 1 has its answer, and the gradients of step 6 are not mixed with those of step 7
    one, other = push(2), push(3)
    copy.push(0, 7, one)
    copy.push(1, 7, other)
    np.testing.assert_allclose(copy.dense, np.arange(22) - 0.05 * (one.dense + other.dense), rtol=1e-5)
    assert copy.block.clocks == [8, 8]


def test_a_share_that_was_lost_before_its_first_copy_is_not_begun_anew(other_fd):
    stores = Stores(other_fd, 2, 1)
    with pytest.raises(MismatchError, match="server 1 was lost before there was a copy of its part"):
        stores.open(0, layout_of(), again=True)
    assert stores.open(0, layout_of()).block.version == 0
