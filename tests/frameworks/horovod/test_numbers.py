"""Reductions, gradients and learning rates in Horovod's mode follow its formulas: scripts hold tables of cases."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate


@pytest.mark.gate
@pytest.mark.parametrize("script", one_in_gate("torch", "keras"))
def test_numbers_are_those_of_horovods_formulas(run_script, script):
    framework = "tensorflow" if script == "keras" else script
    assert run_script(framework, f"{script}_numbers").count("all as computed") == 2
