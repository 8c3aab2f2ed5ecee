"""Programs of torch's own parallelisms train on distrun as they do on gloo: the same losses and weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def compare(run_warm: Callable[..., str], tmp_path: Path) -> Callable[..., str]:
    """Runs variants of `programs/<program>.py`, or all of them, on `size` ranks, and returns what they printed."""

    def run(program: str, size: int, *names: str) -> str:
        return run_warm("torch", size, PROGRAMS / f"{program}.py", str(tmp_path), *names)

    return run


@pytest.mark.gate
def test_ddp_in_its_variants_and_with_its_communication_hooks(compare):
    compare("ddp", 2)


@pytest.mark.gate
def test_what_scripts_call_besides_the_functions_of_torch_distributed(compare):
    compare("group_calls", 2)


def test_ddp_of_more_ranks_than_two(compare):
    compare(
        "ddp", 3, "plain", "unused parameters", "buffers", "join", "join that divides by those left", "Join with ZeRO"
    )


@pytest.mark.gate
def test_fsdp_zero_and_distributed_checkpoints(compare):
    compare("sharding", 2)


@pytest.mark.gate
def test_tensors_of_device_meshes_functional_collectives_and_pipelines(compare):
    compare("meshes", 2, "tensor parallel", "redistributed", "functional collectives", "pipeline 1F1B", "compiled DDP")


def test_compiled_collectives_and_another_pipeline(compare):
    compare("meshes", 2, "compiled collectives", "collectives by inductor", "pipeline GPipe")


def test_meshes_of_two_dimensions(compare):
    compare("meshes", 4)
    compare("sharding", 4, "FSDP1", "FSDP2", "checkpoints")
