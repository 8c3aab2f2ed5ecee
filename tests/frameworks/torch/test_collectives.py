"""The collectives on torch tensors; see programs/collectives.py and programs/gradients.py for the behaviours."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate

pytestmark = pytest.mark.gate


@pytest.mark.parametrize("size", one_in_gate(2, (1, 1)), ids=str)
def test_every_collective_does_what_plain_torch_does_on_everybodys_tensors(job, size):
    job("collectives", size)


@pytest.mark.parametrize("size", one_in_gate((1, 2), 3), ids=str)
def test_gradients_flow_back_through_the_collectives(job, size):
    job("gradients", size)


@pytest.mark.parametrize("size", one_in_gate(2, 3), ids=str)
def test_batches_are_normalised_together(job, size):
    job("normalization", size)


@pytest.mark.parametrize("size", one_in_gate((1, 2), 3), ids=str)
def test_sparse_tensors_are_added_up(job, size):
    job("sparse_tensors", size)
