"""Errors, deaths and hangs inside NCCL, on simulated GPUs: no rank waits for ever, and every rank reports why."""

import re
from pathlib import Path

import pytest
from session.tiers import one_in_gate

FAULTS = Path(__file__).parent / "programs" / "gpu_faults.py"
STUCK = FAULTS.with_name("gpu_stuck.py")


@pytest.mark.gate
def test_a_rank_that_is_killed_inside_an_allreduce_does_not_hang_the_others(gpu_job):
    said = gpu_job(
        FAULTS, (2,), "killed", "rank 1 .*was killed|rank 1 .*is gone", SIMULATED_NCCL_HANG="allReduce:2@1", fail=True
    )
    assert "rank 0 was told" in said


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param(
            {"SIMULATED_NCCL_ASYNC": "allReduce:2@1"},
            r"NCCL on rank 1|rank 1 .* failed",
            marks=pytest.mark.gate,
            id="later",
        ),
        pytest.param(
            {"SIMULATED_NCCL_FAIL": "allReduce:2@1"},
            r"allreduce 'second'.* rank 1|rank 1 .* failed: .*allreduce 'second'",
            marks=pytest.mark.gate,
            id="at once",
        ),
        pytest.param(
            {"SIMULATED_NCCL_HANG": "allReduce:2@1", "GPU_TIMEOUT": "1"},
            r"gave up after \d+ s: allreduce 'second'",
            id="never",
        ),
    ],
)
def test_an_error_of_nccl_is_told_on_all_ranks(gpu_job, fault, expected):
    said = gpu_job(FAULTS, (2,), "failed", expected, **fault)
    assert "rank 0 was told" in said
    assert "rank 1 was told" in said


@pytest.mark.gate
@pytest.mark.parametrize(
    ("fault", "expected"),
    one_in_gate(
        pytest.param({"SIMULATED_NCCL_ASYNC": "send:4@1"}, r"NCCL on rank 1|rank 1 .* failed", id="later"),
        pytest.param(
            {"SIMULATED_NCCL_FAIL": "send:3@1"},
            r"allreduce 'second': send failed in NCCL on rank 1|rank 1 .* failed: .*allreduce 'second'",
            id="at once",
        ),
        pytest.param(
            {"SIMULATED_NCCL_HANG": "recv:3@1", "GPU_TIMEOUT": "1"},
            r"gave up after \d+ s: allreduce 'second'",
            id="never",
        ),
        chosen=1,
    ),
)
def test_an_error_in_an_exchange_of_quantised_arrays_is_told_on_all_ranks(gpu_job, fault, expected):
    said = gpu_job(FAULTS, (1, 1), "failed", expected, DISTRUN_WIRE_DTYPE="int8", **fault)
    assert said.count("was told") == 2


NEVER = {"SIMULATED_NCCL_HANG": "allReduce:2@1", "GPU_TIMEOUT": "1"}
LOST = r"results of operations on the GPU are lost: .*gave up after \d+ s: allreduce 'second'"


@pytest.mark.gate
def test_lost_results_do_not_end_in_success(gpu_job):
    said = gpu_job(FAULTS, (2,), "ending", "", fail=True, **NEVER)
    assert len(re.findall(LOST, said)) == 2, said


def test_shutdown_tells_that_results_are_lost(gpu_job):
    assert gpu_job(FAULTS, 2, "leaving", LOST, **NEVER).count("was told") == 2


@pytest.mark.gate
def test_a_device_that_fails_is_told_on_all_ranks(gpu_job):
    told = "^GPU 1 has failed: cudaErrorIllegalAddress|rank 1 .* has left|rank 1 .* failed"
    # The exit status tells of results that are lost, if any are when the device is found to have failed.
    said = gpu_job(FAULTS, (2,), "breaking", told, fail=None)
    assert said.count("was told") == 2, said


@pytest.mark.gate
@pytest.mark.parametrize("who", one_in_gate("main", "engine", "leave", chosen=1))
def test_a_call_of_nccl_that_does_not_return_ends(gpu_job, who):
    environ = {"DISTRUN_STALL_TIMEOUT": "0"} if who == "leave" else {"GPU_TIMEOUT": "1"}
    assert gpu_job(STUCK, 2, who, **environ).count("was told") == 2
