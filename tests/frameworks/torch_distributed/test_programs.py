"""Programs on the backend "distrun": what torch computes alone, or what they do on gloo; see their first lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from session.tiers import one_in_gate

pytest.importorskip("torch")

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.gate
@pytest.mark.parametrize("size", one_in_gate(2, 1, 4, (1, 2)), ids=str)
def test_every_collective_does_what_torch_does_on_everybodys_tensors(job, size):
    job("collectives", size)


@pytest.mark.gate
@pytest.mark.parametrize("size", one_in_gate((1, 2), 2), ids=str)
def test_all_that_torch_offers_between_two_ranks(job, size):
    assert job("point_to_point", size).count("done") == (size if isinstance(size, int) else sum(size))


@pytest.mark.gate
def test_errors_tell_who_what_and_where_and_groups_go_on(job):
    job("failures", 2)


@pytest.mark.gate
def test_a_rank_that_waits_for_a_dead_one_gets_an_error(run_ranks):
    ended = run_ranks(["--grace", "60", sys.executable, str(PROGRAMS / "death.py")], 2, os.environ)
    assert ended.returncode != 0
    assert "rank 1" in ended.stderr
    assert "told" in ended.stdout


@pytest.fixture
def compare(job: Callable[..., str], tmp_path: Path) -> Callable[..., str]:
    """Runs variants of a program on gloo and on distrun, or all of them, on `size` ranks; returns what they printed."""
    return lambda program, size, *names: job(program, size, str(tmp_path), *names)


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
