"""The collectives on arrays of JAX; see programs/ for the behaviours."""

from __future__ import annotations

from functools import partial

import pytest

pytestmark = pytest.mark.feature_group("JAX")
feature = partial(pytest.mark.feature, backend="jax")

HOSTS = (1, 1)  # a rank on each of two


@pytest.mark.gate
@feature("allreduce, broadcast, allgather, reducescatter, alltoall of pytrees, outside of jit")
@feature("allreduce, broadcast, allgather, reducescatter, alltoall of pytrees, in jit")
@feature("bfloat16, float16, integers, booleans, complex numbers")
@feature("a mismatch between ranks is an error with a name, and the job goes on")
def test_every_collective_does_what_numpy_does_on_everybodys_arrays(warm_job):
    warm_job("collectives", HOSTS)


@feature("collectives through io_callback")
def test_the_fallback_does_the_same(job):
    job("collectives", 2, DISTRUN_JAX_CALL="io_callback")


@pytest.mark.gate
@feature("collectives in grad, jvp and hessian")
@feature("collectives in vmap")
@feature("collectives in scan, fori_loop, while_loop and cond")
@feature("collectives in checkpoint (remat) and custom_vjp")
def test_collectives_work_in_everything_that_jax_makes_of_functions(warm_job):
    warm_job("transformations", HOSTS)


@feature("collectives of the main thread beside a step under way")
@feature("a rank that compiles a step again by itself")
@feature("donated arguments")
def test_programs_under_way_are_not_mixed_up_and_not_left_behind(job):
    job("flight", 2)


@feature("a rank that leaves is an error on the others")
def test_a_rank_that_leaves_is_an_error_on_the_other(job):
    assert "told" in job("leaving", 2, DISTRUN_STALL_TIMEOUT="600")  # longer than the test waits for its end


def test_a_rank_may_have_several_devices(job):
    job("devices", 2)


@pytest.mark.gate
@feature("another JAX, whose internals have changed")
def test_a_jax_that_has_changed_is_worked_around_with_one_warning(job):
    job("drift", 2)
