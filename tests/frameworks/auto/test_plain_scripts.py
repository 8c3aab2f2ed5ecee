"""Plain training scripts train under `distrun --auto` as they do alone, or are refused with the reason.

A few run each time; `--every-script` runs all, and `python tests/support/plain_scripts.py` prints them as a table.
"""

from __future__ import annotations

import pytest
from plain_script_cases import CASES
from plain_scripts import compare

pytest.importorskip("torch")
pytest.importorskip("sklearn")


@pytest.fixture
def check(request):
    """Compares a script on `size` ranks with itself alone."""

    def check(case, size):
        if not case.is_quick and not request.config.getoption("--every-script"):
            pytest.skip("all scripts run with --every-script")
        if case.script.startswith("keras/"):
            pytest.importorskip("keras")
            pytest.importorskip("tensorflow")
        assert compare(case, size).problems() == []

    return check


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.script)
def test_a_script_gives_on_two_ranks_what_it_gives_alone(case, check):
    check(case, 2)


@pytest.mark.parametrize("case", [case for case in CASES if case.is_uneven], ids=lambda case: case.script)
def test_a_script_gives_on_three_ranks_with_uneven_parts_what_it_gives_alone(case, check):
    check(case, 3)
