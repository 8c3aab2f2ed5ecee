"""States are taken apart and put together again."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, namedtuple

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from distrun.checkpoint import trees
from distrun.errors import CheckpointError, UsageError

Point = namedtuple("Point", "x y")


class Stateful:
    """An object as torch's are: its state is a dict."""

    def __init__(self, **state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def there_and_back(value, like=None):
    """The value after a stay in JSON and bytes."""
    builder = trees.Builder()
    form = json.loads(json.dumps(builder.form(value, "it")))
    data = {}
    for name, tensor in builder.tensors.items():
        data[name] = np.empty(tensor.size, np.uint8)
        tensor.copy(data[name])
    return trees.restored(form, data, like, "it")


def same(one, other):
    """Whether two values are equal, of equal types, and NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one.hex() == other.hex()
    return one == other


keys = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
scalars = keys | st.floats() | st.binary() | st.complex_numbers(allow_nan=False)
dtypes = hnp.scalar_dtypes() | hnp.unicode_string_dtypes(max_len=3)
leaves = scalars | hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.dictionaries(keys, inner).map(OrderedDict)
        | st.sets(st.integers())
        | st.frozensets(st.text())
        | st.dictionaries(st.text(), st.integers()).map(Counter)
    ),
    max_leaves=12,
)


@given(values)
def test_plain_values_come_back_equal(value):
    returned = there_and_back(value)
    if isinstance(value, np.ndarray):  # of the other byte order it comes in this machine's
        value = value.astype(value.dtype.newbyteorder("="))
    if not any(isinstance(each, np.ndarray) for each in _all(value)):
        assert same(value, returned)
    assert type(value) is type(returned)


def _all(value):
    yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        yield from _all(each)


@given(hnp.arrays(dtypes.map(lambda dtype: dtype.newbyteorder("=")), hnp.array_shapes(min_dims=0, max_side=4)))
def test_arrays_come_back_bit_for_bit(array):
    assert same(array, there_and_back(array))
    assert same(array[()], there_and_back(array[()]))


def test_arrays_that_are_views_come_back_in_order():
    array = np.arange(12).reshape(3, 4).T[::2]
    assert np.array_equal(there_and_back(array), array)


def test_bfloat16_comes_back():
    array = np.array([1, 2.5, -3], pytest.importorskip("ml_dtypes").bfloat16)
    assert same(array, there_and_back(array))


def test_what_comes_back_is_a_copy():
    array = np.zeros(3)
    returned = there_and_back([array])[0]
    array += 1
    assert returned.tolist() == [0, 0, 0]


def test_an_object_with_a_state_is_overwritten_and_returned():
    given = Stateful(weights=np.ones(2), steps=3, group=[{"lr": math.inf}])
    like = Stateful()
    assert there_and_back({"a": [given]}, {"a": [like]}) == {"a": [like]}
    assert like.state["steps"] == 3
    assert like.state["group"] == [{"lr": math.inf}]
    assert like.state["weights"].tolist() == [1, 1]


def test_the_metadata_of_a_state_comes_back():
    state = OrderedDict(a=1)
    state._metadata = OrderedDict({"": {"version": 2}})
    assert there_and_back(state)._metadata == state._metadata


def test_named_tuples_take_the_type_of_what_they_replace():
    returned = there_and_back(Point(1, (np.ones(2),)), Point(None, None))
    assert isinstance(returned, Point)
    assert returned.x == 1
    assert returned.y[0].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("like", "text"),
    [
        (None, r"^the checkpoint has for it\.a a .*Point of 2 parts, and nothing is given to restore: give the same"),
        ({"a": 3}, "and a int is given"),
        ({"a": (1, 2)}, "and a tuple is given"),
    ],
)
def test_an_object_that_nothing_replaces_is_refused_with_its_place(like, text):
    with pytest.raises(UsageError, match=text):
        there_and_back({"a": Point(1, 2)}, like)


@pytest.mark.parametrize("like", [None, 5])
def test_a_state_that_no_object_takes_is_refused(like):
    with pytest.raises(UsageError, match="an object with load_state_dict"):
        there_and_back(Stateful(), like)


@pytest.mark.parametrize("value", [print, object(), np.array([object()]), Exception("no"), range(3), np.dtype("f4")])
def test_what_cannot_be_saved_is_refused_with_its_place(value):
    with pytest.raises(UsageError, match=r"^it\.here\.1 is "):
        trees.Builder().form({"here": [1, value]}, "it")


def test_names_of_tensors_are_unique_and_follow_their_places():
    builder = trees.Builder()
    builder.form({0: np.zeros(1), "0": np.ones(1), "a": [np.ones(2)]}, "it")
    assert list(builder.tensors) == ["it.0", "it.0#2", "it.a.0"]


def test_a_form_of_a_later_version_is_refused():
    with pytest.raises(CheckpointError, match=r"^it has the unknown form 'code': it was saved by a newer distrun"):
        trees.restored({"code": "print()"}, {}, None, "it")


class KerasOptimizer:
    """An optimizer that looks as if it were of Keras, without variables."""

    __module__ = "keras.optimizers"
    variables = ()

    def __init__(self, feedback):
        self.distrun_feedback = feedback

    def apply_gradients(self):
        raise AssertionError


def test_what_was_lost_is_dropped_with_a_warning_where_an_optimizer_loses_nothing_any_more():
    losing = Stateful(gradients={"0": 1.0})
    other = KerasOptimizer(Stateful())
    there_and_back(KerasOptimizer(losing), other)
    assert other.distrun_feedback.state == losing.state
    with pytest.warns(
        UserWarning, match="residuals that the checkpoint holds for the gradients of this optimizer, which this"
    ):
        there_and_back(KerasOptimizer(losing), KerasOptimizer(None))
    there_and_back(KerasOptimizer(Stateful()), KerasOptimizer(None))  # nothing is owed
