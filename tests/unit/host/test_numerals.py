"""Numbers that nobody has are none, before anything is made of them."""

import pytest

from distrun.host.numerals import whole_number


@pytest.mark.parametrize(
    ("text", "number"), [("1", 1), ("8", 8), ("007", 7), ("9" * 5000, None), ("0" * 5000 + "3", 3)]
)
def test_digits_are_a_number_if_that_is_allowed(text, number):
    assert whole_number(text, 1, 8) == number


@pytest.mark.parametrize("text", ["", " 1", "-1", "+1", "1.0", "1_0", "\u0663", "\u00b2", "0", "9", "10"])
def test_everything_else_is_none(text):
    assert whole_number(text, 1, 8) is None
