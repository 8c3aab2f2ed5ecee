"""Parameters are divided into consecutive fragments that are about equal."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from distrun.errors import UsageError
from distrun.methods.diloco.fragments import divide


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=30).flatmap(
        lambda s: st.tuples(st.just(s), st.integers(1, len(s)))
    )
)
def test_each_parameter_is_in_one_fragment(given):
    sizes, count = given
    found = divide(sizes, count)
    assert [place for fragment in found for place in fragment.places] == list(range(len(sizes)))
    assert [size for fragment in found for size in fragment.sizes] == sizes
    assert len(found) == count
    assert all(fragment.places for fragment in found)


def test_they_are_about_equal():
    assert [fragment.count for fragment in divide([10] * 12, 4)] == [30] * 4
    assert [fragment.sizes for fragment in divide([1, 1, 100, 1], 2)] == [(1, 1), (100, 1)]
    assert [fragment.sizes for fragment in divide([100, 1, 1], 3)] == [(100,), (1,), (1,)]


def test_the_parts_of_a_flat_array_are_the_parameters():
    (fragment,) = divide([2, 0, 3], 1)
    flat = np.arange(5)
    assert [part.tolist() for part in fragment.parts(flat)] == [[0, 1], [], [2, 3, 4]]
    fragment.parts(flat)[2][:] = 9
    assert flat.tolist() == [0, 1, 9, 9, 9]


def test_more_fragments_than_parameters_are_refused():
    with pytest.raises(UsageError, match="fragments=3 is more than the 2 parameters"):
        divide([5, 5], 3)
