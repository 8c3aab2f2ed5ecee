"""Requests of plain arrays are remembered where that is right, and made again where it is not."""

import numpy as np
import pytest

from distrun.errors import UsageError
from distrun.runtime.collectives import plain
from distrun.runtime.operations.reduction import Average, Sum
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set

FLOAT = np.dtype(np.float32)


def request(
    name="a", op=Sum, prescale=1.0, postscale=1.0, process_set=global_process_set, dtype=FLOAT, shapes=((2, 3),)
):
    return plain._request((name, op, prescale, postscale, process_set), dtype, shapes)


def test_the_request_of_a_call_that_comes_again_is_made_once():
    assert request() is request()
    assert request(shapes=((2,), (3,))) is request(shapes=((2,), (3,)))


@pytest.mark.parametrize(
    "other",
    [{"name": "b"}, {"name": None}, {"op": Average}, {"dtype": np.dtype(np.int32)}, {"shapes": ((3, 2),)}],
    ids=lambda other: next(iter(other)),
)
def test_another_call_has_a_request_of_its_own(other):
    first, second = request(), request(**other)
    assert first is not None
    assert second is not None
    assert first != second
    assert request() is first


def test_a_request_says_what_the_call_says():
    assert tuple(request("x", Average, 2, 0.5, shapes=((4,),))) == (
        *("allreduce", "x", "float32", ((4,),), Average, -1, 2.0, 0.5, 0, "cpu", ""),
    )


def test_a_number_that_equals_an_operator_is_refused_although_the_operator_is_known():
    assert int(Sum) == 1
    assert request() is not None
    with pytest.raises(UsageError, match="op=1 is not a reduce op"):
        request(op=1)


def test_a_factor_that_changes_is_looked_at_in_every_call():
    factor = np.array(1.0)
    assert request(prescale=factor).prescale == 1.0
    factor[...] = 3.0
    assert request(prescale=factor).prescale == 3.0


def test_the_process_set_is_looked_at_in_every_call():
    assert request() is not None
    with pytest.raises(UsageError, match="not registered"):
        request(process_set=ProcessSet([0]))
    with pytest.raises(UsageError, match="process_set='a' is not a"):
        request(process_set="a")


def test_elements_that_cannot_travel_are_refused_every_time():
    for _ in range(2):
        with pytest.raises(UsageError, match="cannot travel"):
            request(dtype=np.dtype("datetime64[s]"))


def test_elements_that_numpy_does_not_have_are_not_plain():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for _ in range(2):
        assert request(dtype=np.dtype(ml_dtypes.bfloat16)) is None
