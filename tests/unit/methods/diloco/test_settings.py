"""Impossible settings are refused, with the value and what is allowed."""

import pytest

from distrun.errors import UsageError
from distrun.methods.diloco.settings import OuterSettings, check_equal


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every=0 must be a whole number, 1 or more"),
        ({"every": 2.5}, "every=2.5 must be"),
        ({"every": True}, "every=True must be"),
        ({"fragments": 0}, "fragments=0 must be"),
        ({"warmup": -1}, "warmup=-1 must be a whole number, 0 or more"),
        ({"every": 3}, "fragments=4 cannot take turns within every=3 steps"),
        ({"outer_lr": 0}, "outer_lr=0 must be a number greater than 0"),
        ({"momentum": 1.0}, "momentum=1.0 must be a number from 0 to less than 1"),
        ({"momentum": None}, "momentum=None must be"),
        ({"wire": "int3"}, "wire='int3' is not a type of the wire: use 'float16', 'bfloat16', 'int8', 'int4', or None"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        OuterSettings(**options)


def test_ranks_with_other_settings_are_named_with_what_differs():
    usual = OuterSettings()
    check_equal([usual] * 3)
    with pytest.raises(
        UsageError, match=r"rank 0 was given every=50, wire='int4', rank 2 every=20, wire=''; give all ranks the same"
    ):
        check_equal([usual, usual, OuterSettings(every=20, wire="")])
