"""Plain training scripts train under `distrun --auto` as they do alone, or are refused with the reason.

One is in the gate; `python tests/support/plain_scripts.py` prints all of them as a table.
"""

from __future__ import annotations

import pytest
from plain_script_cases import CASES
from plain_scripts import compare

pytest.importorskip("torch")
pytest.importorskip("sklearn")


def check(case, size):
    """Compare a script on `size` ranks with itself alone."""
    if case.script.startswith("keras/"):
        pytest.importorskip("keras")
        pytest.importorskip("tensorflow")
    assert compare(case, size).problems() == []


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.script, marks=pytest.mark.gate if case.is_in_gate else ()) for case in CASES]
)
def test_a_script_gives_on_two_ranks_what_it_gives_alone(case):
    check(case, 2)


@pytest.mark.parametrize("case", [case for case in CASES if case.is_uneven], ids=lambda case: case.script)
def test_a_script_gives_on_three_ranks_with_uneven_parts_what_it_gives_alone(case):
    check(case, 3)
