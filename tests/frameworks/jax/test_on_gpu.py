"""Collectives of jitted functions on GPUs: a simulated one and, where JAX has one, a real one."""

from __future__ import annotations

import logging
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from session.tiers import one_in_gate

import distrun.jax as distrun
from distrun.contract.settings import JAX_CALL
from distrun.graphs.jax import mechanism
from distrun.host.gpus import visible_gpus

PROGRAMS = Path(__file__).parent / "programs" / "gpu"
QUICK = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0", JAX_CALL: "ffi"}
HERE = ("collectives", "transformations", "training", "flight")


@pytest.mark.gate
@pytest.mark.parametrize("size", one_in_gate(2, 1), ids=str)
def test_calls_are_queued_behind_xlas_work_and_before_its_next(gpu_job, size):
    gpu_job(PROGRAMS / "order.py", size, **QUICK)


@pytest.mark.gate
@pytest.mark.parametrize("program", one_in_gate(*HERE))
def test_what_works_on_the_cpu_works_on_the_gpu(gpu_job, program):
    gpu_job(PROGRAMS / "on_gpu.py", (1, 1), program, **QUICK)


@pytest.mark.full
def test_tensors_are_staged_where_there_is_no_nccl(gpu_job):
    gpu_job(PROGRAMS / "on_gpu.py", 2, "collectives", DISTRUN_GPU_BACKEND="staged", **QUICK)


@pytest.mark.gate
def test_without_all_that_it_needs_programs_go_through_the_hosts_memory_with_one_warning(monkeypatch, caplog):
    monkeypatch.setenv(JAX_CALL, "ffi")
    monkeypatch.setattr(mechanism, "_computes_on_gpu", lambda: True)
    mechanism._mechanism.cache_clear()
    mechanism._has_gpu_handler.cache_clear()
    distrun.init()
    try:
        with caplog.at_level(logging.WARNING, "distrun"):
            for factor in (2.0, 3.0):
                scaled = jax.jit(partial(distrun.allreduce, prescale_factor=factor))(jnp.ones(2))
                np.testing.assert_array_equal(scaled, np.full(2, factor))
            np.testing.assert_array_equal(distrun.allreduce(jnp.ones(2), prescale_factor=4.0), np.full(2, 4.0))
        (line,) = caplog.messages
        assert "the slower way, by io_callback (UsageError: " in line
        assert "DISTRUN_JAX_CALL=io_callback silences this" in line
    finally:
        distrun.shutdown()
        mechanism._mechanism.cache_clear()
        mechanism._has_gpu_handler.cache_clear()


@pytest.mark.lab
@pytest.mark.gpu
@pytest.mark.skipif(
    not (visible_gpus(os.environ) and any(find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))),
    reason="there is no GPU, or jax is built without CUDA",
)
@pytest.mark.parametrize("program", HERE)
def test_what_works_on_the_cpu_or_a_simulated_gpu_works_on_real_ones(job, program):
    job(program, 2, DISTRUN_SHARE_GPUS="1", JAX_PLATFORMS="cuda,cpu", XLA_FLAGS="", **{JAX_CALL: "ffi"})
