"""Requests survive being sent, and say what they are."""

import json
import math

import pytest
from hypothesis import given, strategies as st

from distrun.runtime.operations.dtypes import ELEMENT_TYPES
from distrun.runtime.operations.reduction import ReduceOp, Sum
from distrun.runtime.operations.request import AGREED, Request, describe_field, first_difference, title

GROUP = Request("allreduce", "grad", "float16", ((2, 3), (), (0, 5)), Sum, -1, 0.5, 2.0, 0)

requests = st.builds(
    Request,
    st.sampled_from(["allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier"]),
    st.none() | st.text(max_size=30),
    st.sampled_from(sorted(ELEMENT_TYPES)),
    st.lists(st.lists(st.integers(-1, 1 << 40), max_size=4).map(tuple), max_size=4).map(tuple),
    st.sampled_from(ReduceOp),
    st.integers(-1, 1000),
    st.floats(allow_nan=False),
    st.floats(allow_nan=False),
    st.integers(0, 5),
    st.sampled_from(["cpu", "cuda"]),
)


@given(requests, st.text(max_size=50))
def test_a_request_comes_back_from_a_message_as_it_was(request, site):
    decoded, where = Request.decode(request.encode(site))
    assert decoded == request
    assert hash(decoded) == hash(request)
    assert where == site
    assert [type(value) for value in decoded] == [type(value) for value in request]


def test_a_message_is_small():
    assert len(GROUP.encode("train.py:12 in main")) < 150
    assert json.loads(GROUP.encode("s"))[:3] == ["s", "allreduce", "grad"]


def test_its_bytes_are_those_of_all_tensors_and_an_open_dimension_counts_as_one():
    assert GROUP.nbytes == (6 + 1 + 0) * 2
    assert Request("allgather", None, "float64", ((-1, 4),)).nbytes == 32
    assert Request("barrier", None, "uint8", ()).nbytes == 0
    assert Request("allreduce", None, "bfloat16", ((1 << 40,),)).nbytes == 1 << 41


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("kind", "allreduce"),
        ("dtype", "float16"),
        ("shapes", "[2, 3], [], [0, 5]"),
        ("op", "sum"),
        ("root", "-1"),
        ("prescale", "0.5"),
        ("device", "cpu"),
    ],
)
def test_fields_are_shown_as_people_write_them(field, text):
    assert describe_field(GROUP, field) == text


def test_a_dimension_in_which_ranks_may_differ_is_a_star_and_long_lists_are_cut():
    assert describe_field(GROUP._replace(shapes=((-1, 4),)), "shapes") == "[*, 4]"
    assert describe_field(GROUP._replace(shapes=((1,),) * 9), "shapes") == "[1], [1], [1], [1] and 5 more"


def test_everything_but_the_name_and_the_process_set_must_be_agreed_on():
    assert set(AGREED) == set(Request._fields) - {"name", "process_set"}


def test_the_first_difference_is_the_first_tensor_that_some_ranks_see_differently():
    assert first_difference([GROUP, GROUP]) is None
    assert first_difference([GROUP, GROUP._replace(shapes=((2, 3), (), (5, 0)))]) == 2
    assert first_difference([GROUP, GROUP._replace(shapes=((2, 3), (1,), (5, 0)))]) == 1
    assert first_difference([GROUP, GROUP._replace(shapes=((2, 3),))]) is None


def test_titles_have_the_name_or_the_number():
    assert title("allreduce", "grad.0") == "allreduce 'grad.0'"
    assert title("barrier", None, 17) == "unnamed barrier (number 17)"
    assert title("barrier", "it's", 17) == 'barrier "it\'s"'


def test_infinite_factors_survive():
    request, _ = Request.decode(GROUP._replace(prescale=math.inf).encode(""))
    assert request.prescale == math.inf
