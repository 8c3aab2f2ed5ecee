"""Programs on the backend "distrun": what torch computes alone, or what they do on gloo; see their first lines."""

from __future__ import annotations

import os
import sys
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


@pytest.mark.parametrize(
    ("program", "size", "variants"),
    [
        *(pytest.param(program, 2, (), marks=pytest.mark.gate) for program in ("ddp", "group_calls", "sharding")),
        pytest.param(
            *("meshes", 2),
            ("tensor parallel", "redistributed", "functional collectives", "pipeline 1F1B", "compiled DDP"),
            marks=pytest.mark.gate,
        ),
        ("meshes", 2, ("compiled collectives", "collectives by inductor", "pipeline GPipe")),
        ("meshes", 4, ()),
        ("sharding", 4, ("FSDP1", "FSDP2", "checkpoints")),
        (
            "ddp",
            3,
            ("plain", "unused parameters", "buffers", "join", "join that divides by those left", "Join with ZeRO"),
        ),
    ],
)
def test_variants_of_a_program_do_on_distrun_what_they_do_on_gloo(job, program, size, variants, tmp_path):
    job(program, size, str(tmp_path), *variants)
