"""Fusing gradients for a graph: with numpy as the framework, against the plain sum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from distrun.graphs import gradients
from distrun.graphs.gradients import reduce_gradients
from distrun.runtime.collectives.call import Call
from distrun.tensor_fusion.buckets import GradientInfo

SHAPES = st.lists(st.integers(0, 200), max_size=2).map(tuple)


class Numpy:
    """The toolkit for numpy arrays; the shape of those in `unknown` is not known when the graph is made."""

    def __init__(self, unknown=()):
        self.unknown = [id(array) for array in unknown]

    def item(self, array):
        return None if id(array) in self.unknown else GradientInfo(array.nbytes, array.dtype)

    def join(self, arrays):
        return np.concatenate([array.reshape(-1) for array in arrays])

    def cut(self, joined, like):
        stops = np.cumsum([array.size for array in like])[:-1]
        return [part.reshape(array.shape) for part, array in zip(np.split(joined, stops), like, strict=True)]


def doubling(calls):
    """Stands for a collective that doubles; notes what it was called with."""

    def call(tensors, collective):
        calls.append((collective.name, [tensor.nbytes for tensor in tensors]))
        return [2 * tensor for tensor in tensors]

    return call


@given(st.lists(st.tuples(SHAPES, st.sampled_from(["float32", "float64"]), st.booleans()), max_size=12))
@pytest.mark.parametrize("bound", [None, 1 << 12])
def test_every_gradient_comes_back_reduced_with_its_shape_and_dtype(bound, described):
    given_ = [np.arange(math.prod(shape), dtype=dtype).reshape(shape) for shape, dtype, _ in described]
    unknown = [array for array, (_, _, is_unknown) in zip(given_, described, strict=True) if is_unknown]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "_threshold", lambda: bound)
        reduced = reduce_gradients(given_, Call("allreduce", "g"), Numpy(unknown), doubling([]))
    assert len(reduced) == len(given_)
    for before, after in zip(given_, reduced, strict=True):
        assert (after.shape, after.dtype) == (before.shape, before.dtype)
        np.testing.assert_array_equal(after, 2 * before)


def test_small_ones_are_put_together_and_large_ones_handed_over_as_they_are(monkeypatch):
    monkeypatch.setattr(gradients, "_threshold", lambda: None)
    calls: list = []
    small, large = np.ones(10, np.float32), np.ones(1 << 15, np.float32)
    reduce_gradients([small, large, small], Call("allreduce", "g"), Numpy(), doubling(calls))
    assert calls == [("g", [large.nbytes, 2 * small.nbytes])]


def test_buckets_go_from_the_last_gradient_to_the_first_under_names_of_their_own(monkeypatch):
    monkeypatch.setattr(gradients, "_threshold", lambda: 1 << 20)
    calls: list = []
    arrays = [np.ones(size, np.float32) for size in (3 << 17, 1 << 18, 10)]
    reduce_gradients(arrays, Call("allreduce", "g"), Numpy(), doubling(calls))
    assert calls == [("g", [40]), ("g.1", [1 << 20]), ("g.2", [3 << 19])]


def test_calls_say_where_in_a_list_whose_losses_are_kept_their_gradients_stand(monkeypatch):
    monkeypatch.setattr(gradients, "_threshold", lambda: 1 << 12)
    arrays = [np.full((size, 30), size, np.float32) for size in (20, 21, 1, 22, 23)]
    places = []

    def call(tensors, collective):
        places.extend((collective.first + place, len(tensor)) for place, tensor in enumerate(tensors))
        return tensors

    collective = Call("allreduce", "list", wire="int4", is_gradient=True, gradients="list")
    reduce_gradients(arrays, collective, Numpy(), call)
    assert sorted(places) == [(place, len(array)) for place, array in enumerate(arrays)]
