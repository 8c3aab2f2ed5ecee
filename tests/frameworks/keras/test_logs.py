"""The numbers in what Keras logs."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from distrun.keras.values.logs import numbers_of, plain, replaced  # noqa: E402

pytestmark = pytest.mark.gate

Pair = namedtuple("Pair", "first second")
NESTED = {
    "loss": keras.ops.ones(()),
    "compile_metrics": {"mae": np.float32(2), "per_class": keras.ops.ones(2), "text": "words"},
    "half": keras.ops.cast(0.5, "bfloat16"),
    "pair": Pair(keras.Variable(3.0), None),
    "none": None,
    "flags": [True, b"", object, 4],
}


def test_numbers_are_found_in_any_nest_and_all_else_is_left_out():
    numbers = numbers_of(NESTED)
    assert {path: value.tolist() for path, value in numbers.items()} == {
        ("compile_metrics", "mae"): 2.0,
        ("compile_metrics", "per_class"): [1.0, 1.0],
        ("flags", 3): 4,
        ("half",): 0.5,
        ("loss",): 1.0,
        ("pair", 0): 3.0,
    }
    assert list(numbers) == sorted(numbers, key=lambda path: tuple(map(str, path)))
    assert numbers_of(3.5) == {(): 3.5}
    assert numbers_of(None) == {}


def test_a_nest_keeps_its_form_when_its_numbers_are_replaced():
    found = replaced(NESTED, {path: 2 * value for path, value in numbers_of(NESTED).items()})
    assert (found["loss"], found["compile_metrics"]["mae"], found["pair"]) == (2.0, 4.0, Pair(6.0, None))
    assert found["compile_metrics"]["per_class"].tolist() == [2.0, 2.0]
    assert (found["compile_metrics"]["text"], found["none"], found["flags"]) == ("words", None, [True, b"", object, 8])
    assert plain({"loss": np.float32(0.5)}) == {"loss": 0.5}
