"""Uses and misuses of arrays on simulated GPUs: settings, missing libraries, shared GPUs, ranks that end early."""

from __future__ import annotations

from pathlib import Path

import pytest
from session.tiers import one_in_gate

pytestmark = pytest.mark.gate
PROGRAMS = Path(__file__).parent / "programs"
USE, COLLECTIVES, SETS = (PROGRAMS / f"gpu_{name}.py" for name in ("use", "collectives", "process_sets"))
SHARED = {"SIMULATED_GPUS": "1", "DISTRUN_SHARE_GPUS": "1"}
OLD = {**SHARED, "SIMULATED_NCCL_VERSION": "22705"}
REFUSES = "ranks 0, 1 share a GPU, which NCCL 2.27.5 refuses: update it to 2.30.0 or newer"


@pytest.mark.parametrize(
    ("how", "expected", "environ"),
    [
        ("refused", f"^DISTRUN_GPU_BACKEND=nccl cannot be: {REFUSES}", {"DISTRUN_GPU_BACKEND": "nccl", **OLD}),
        ("without NCCL on rank 1", r"rank 1 \(on .*\) has no NCCL, as cupy finds no libnccl.so.2: pip install", {}),
        ("integers", "", {}),
        ("failing to connect", "failed in NCCL on rank 1: NCCL_ERROR_SYSTEM_ERROR: unhandled system error", {}),
        ("again", "", {}),
        ("left behind", "0", {"DISTRUN_STALL_TIMEOUT": "0"}),
        ("left behind", "1", {"DISTRUN_STALL_TIMEOUT": "0"}),
        *one_in_gate(
            pytest.param("without cupy", r"^GPU tensors need cupy, .*: pip install 'distrun\[cuda12\]' or", {}),
            pytest.param("told", f"^tensors on GPUs travel through the hosts' memory: {REFUSES}", OLD),
            pytest.param(
                *("told", "through the hosts' memory: DISTRUN_GPU_BACKEND=staged"), {"DISTRUN_GPU_BACKEND": "staged"}
            ),
            pytest.param(
                *("never connected", r"gave up after \d+ s: NCCL on rank \d connects the GPUs of 2 ranks"),
                {"GPU_TIMEOUT": "1"},
            ),
            pytest.param("leaving", "", {}),
        ),
    ],
    ids=lambda value: value[:28] if isinstance(value, str) else "",
)
def test_every_rank_is_told_what_is_the_matter(gpu_job, how, expected, environ):
    said = gpu_job(USE, 2, how, expected, **environ)
    assert said.count("is as expected") == 2


@pytest.mark.parametrize("how", one_in_gate("killed while connecting", "raising", chosen=1))
def test_a_rank_that_ends_is_told_of_by_the_others(gpu_job, how):
    assert "rank 0 is as expected" in gpu_job(USE, (2,), how, fail=True)


@pytest.mark.full
def test_too_few_gpus_are_refused_at_the_start(gpu_job):
    said = gpu_job(USE, 2, "refused", "", fail=True, SIMULATED_GPUS="1", DISTRUN_SHARE_GPUS="0")
    assert "2 ranks on localhost but only 1 visible GPU: start at most 1 there, give distrun --share-gpus" in said


def test_every_collective_with_every_dtype(gpu_job):
    said = gpu_job(COLLECTIVES, 2, "1", "77", SIMULATED_GPU_JITTER="0")
    assert said.count("results are right") == 2


@pytest.mark.full
@pytest.mark.parametrize("environ", [{}, {"DISTRUN_GPU_BACKEND": "staged"}], ids=["NCCL", "staged"])
def test_every_collective_on_a_gpu_that_is_shared(gpu_job, environ):
    said = gpu_job(COLLECTIVES, 2, "0", "77", **SHARED, **environ, SIMULATED_GPU_JITTER="0")
    assert said.count("results are right") == 2


@pytest.mark.full
def test_every_collective_in_a_world_of_one(gpu_job):
    assert "results are right" in gpu_job(COLLECTIVES, 1, "0", "77", SIMULATED_GPU_JITTER="0")


def test_a_host_that_is_ahead_holds_no_memory(gpu_job):
    assert gpu_job(PROGRAMS / "gpu_ahead.py", 2, SIMULATED_GPU_JITTER="2000").count("fine") == 2


@pytest.mark.parametrize(
    ("size", "environ"),
    one_in_gate(
        pytest.param((2, 1), {}, id="hosts"),
        pytest.param(4, {}, id="nccl"),
        pytest.param(3, {"DISTRUN_GPU_BACKEND": "staged"}, id="staged"),
        pytest.param(4, {**SHARED, "SIMULATED_GPUS": "2"}, id="shared"),
    ),
)
def test_process_sets_overlap_on_gpus_and_come_and_go(gpu_job, size, environ):
    ranks = size if isinstance(size, int) else sum(size)
    assert gpu_job(SETS, size, **environ).count("fine") == ranks


@pytest.mark.parametrize("size", one_in_gate(2, (1, 1), chosen=1), ids=["host", "hosts"])
def test_ranks_that_have_joined_change_nothing_on_the_others_gpus(gpu_job, size):
    assert gpu_job(PROGRAMS / "gpu_join.py", size).count("fine") == 2


@pytest.mark.full
def test_a_rank_that_is_killed_inside_an_allreduce_of_a_process_set_does_not_hang_the_others(gpu_job):
    said = gpu_job(SETS, (3,), "killed", SIMULATED_NCCL_HANG="allReduce:3@1", fail=True)
    assert all(f"rank {rank} was told" in said for rank in (0, 1)), said
