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


def test_doubles_are_as_exact_through_the_hosts_memory_as_through_nccl(gpu_job):
    said = gpu_job(PROGRAM, (1, 1), "doubles", DISTRUN_WIRE_DTYPE="int8", DISTRUN_GPU_BACKEND="staged")
    assert said.count("fine") == 2
