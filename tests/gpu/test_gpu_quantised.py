"""Tensors on simulated GPUs that travel quantised between hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from session.tiers import one_in_gate

PROGRAM = Path(__file__).parent / "programs" / "gpu_quantised.py"


@pytest.mark.gate
@pytest.mark.parametrize(
    ("size", "wire", "arguments"),
    one_in_gate(
        pytest.param((1, 1, 1), "int4", ["exact"]),
        pytest.param((2, 2, 2), "int8", ["exact"]),
        pytest.param((2, 1), "int4", []),
    ),
    ids=str,
)
def test_reductions_travel_quantised_between_hosts(gpu_job, size, wire, arguments):
    said = gpu_job(PROGRAM, size, *arguments, DISTRUN_WIRE_DTYPE=wire, SIMULATED_GPU_JITTER="100")
    assert said.count("fine") == sum(size)
