"""Ranks in Horovod's mode compute what its formulas say: scripts hold tables of cases, in numbers."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate

pytestmark = pytest.mark.gate
SIZES = one_in_gate(2, 4, 3, (1, 1))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("script", ["torch_numbers", "torch_training_numbers"])
def test_torch_computes_what_horovods_formulas_say(run_script, script, size):
    ranks = size if isinstance(size, int) else sum(size)
    assert run_script("torch", script, size=size).count("all as computed") == ranks


@pytest.mark.full
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("script", ["tensorflow_numbers", "keras_numbers"])
def test_tensorflow_and_keras_compute_what_horovods_formulas_say(run_script, script, size):
    assert run_script("tensorflow", script, size=size).count("all as computed") == size
