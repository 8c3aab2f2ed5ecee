"""A collective that a graph carries as text, and its use of memory, in a world of one rank."""

import numpy as np
import pytest

import distrun
from distrun.errors import MismatchError, UsageError
from distrun.graphs.prepared import complete, prepare, storage_of
from distrun.runtime.collectives.call import Call, reducescatter_gradient_factor
from distrun.runtime.engine.single_process import SingleProcessEngine
from distrun.runtime.operations.reduction import Average, Max, Sum


@pytest.fixture(autouse=True)
def world_of_one():
    distrun.init()
    yield
    distrun.shutdown()


def test_its_text_says_all_of_it():
    collective = Call(
        "allreduce", 'gradients "0"', Max, -1, 0.5, 2.0, distrun.global_process_set, "bfloat16", "train.py:1 in main"
    )
    assert Call.decode(collective.encode()) == collective


def test_several_dtypes_are_reduced_by_one_call():
    inputs = [np.arange(3.0), np.arange(4, dtype=np.float32), np.ones(2)]
    outputs = [np.empty_like(array) for array in inputs]
    prepared = prepare(
        Call("allreduce", "x", Sum, prescale=2.0), ("float64", "float32", "float64"), ((3,), (2, 2), (2,))
    )
    prepared.reduce(inputs, outputs)
    for before, after in zip(inputs, outputs, strict=True):
        np.testing.assert_array_equal(after, 2 * before)


def test_results_that_fill_one_room_begin_at_aligned_addresses_as_far_as_they_can():
    inputs = [np.arange(3.0), np.arange(16.0), np.arange(8.0)]
    room = np.empty(27)
    results = prepare(Call("allreduce", "x", Sum), ("float64",) * 3, ((3,), (16,), (8,))).reduce_into(inputs, room)
    for before, after in zip(inputs, results, strict=True):
        np.testing.assert_array_equal(after, before)
        assert np.shares_memory(after, room)
    starts = [(result.ctypes.data - room.ctypes.data) // room.itemsize for result in results]
    assert starts == [24, 0, 16]


def test_the_results_may_be_formed_in_the_inputs():
    array = np.arange(5.0)
    prepare(Call("allreduce", "x", Sum, postscale=3.0), ("float64",), ((5,),)).reduce([array], [array])
    np.testing.assert_array_equal(array, 3 * np.arange(5.0))


def test_nothing_is_under_way_in_memory_that_is_given_back_after_an_error(monkeypatch):
    started = []

    def fail(self, handle):
        started.append(handle)
        handle.done, handle.error = True, MismatchError("the ranks disagree")
        return handle

    for verb in ("run", "submit"):
        monkeypatch.setattr(SingleProcessEngine, verb, fail)
    arrays = [np.ones(3), np.ones(3, np.float32)]
    with pytest.raises(MismatchError, match="disagree"):
        prepare(Call("allreduce", "x", Sum), ("float64", "float32"), ((3,), (3,))).reduce(arrays, arrays)
    assert [handle.request.dtype for handle in started] == ["float64"]


def test_a_broadcast_copies_the_roots_elements():
    array, output = np.arange(5.0), np.empty(5)
    prepare(Call("broadcast", "x", root=0), ("float64",), ((5,),)).reduce([array], [output])
    np.testing.assert_array_equal(output, array)


@pytest.mark.parametrize("kind", ["allgather", "alltoall", "reducescatter"])
def test_row_exchange_gives_new_arrays(kind):
    array = np.arange(6, dtype=storage_of("bfloat16"))
    ((output, _),) = complete(prepare(Call(kind, "x", Sum), ("bfloat16",), ((3, 2),)).row_exchange([array]))
    np.testing.assert_array_equal(output, array)
    assert not np.shares_memory(output, array)


def test_an_operator_that_a_dtype_does_not_have_is_refused_when_the_graph_is_made():
    with pytest.raises(UsageError, match="complex64"):
        prepare(Call("allreduce", "x", Max), ("complex64",), ((3,),))


@pytest.mark.parametrize(("mode", "sum_", "average"), [("0", 6.0, 3.0), ("1", 12.0, 6.0)])
def test_gradients_of_a_reducescatter_are_its_derivative_and_horovods_in_its_mode(monkeypatch, mode, sum_, average):
    monkeypatch.setenv("DISTRUN_HOROVOD", mode)
    monkeypatch.setattr(type(distrun.global_process_set), "size", lambda self: 2)
    factors = [
        reducescatter_gradient_factor(Call("reducescatter", "x", op, prescale=2.0, postscale=3.0))
        for op in (Sum, Average)
    ]
    assert factors == [sum_, average]
