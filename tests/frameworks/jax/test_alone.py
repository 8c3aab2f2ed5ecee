"""A world of one, and what needs no ranks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import distrun.jax as distrun
from distrun import UsageError
from distrun.contract.settings import JAX_CALL
from distrun.graphs.jax import mechanism
from distrun.graphs.jax.shapes import result_shape
from distrun.runtime.collectives.call import Call

pytestmark = pytest.mark.gate


@pytest.fixture(autouse=True)
def _world():
    distrun.init()
    yield
    distrun.shutdown()


def test_in_a_world_of_one_programs_are_left_as_they_are():
    tree = {"a": jnp.arange(4.0), "b": (jnp.int32(3), None)}

    def function(tree):
        return [
            distrun.allreduce(tree),
            distrun.broadcast(tree),
            distrun.allgather(tree["a"]),
            distrun.reducescatter(tree["a"]),
            distrun.alltoall(tree["a"]),
        ]

    assert "custom_call" not in jax.jit(function).lower(tree).as_text()
    for results in (function(tree), jax.jit(function)(tree)):
        for result in jax.tree.leaves(results):
            np.testing.assert_array_equal(result, np.arange(4.0) if result.ndim else 3)
    assert distrun.broadcast_parameters(tree) is tree


def test_factors_apply_in_a_world_of_one_too():
    doubled = jax.jit(lambda x: distrun.allreduce(x, prescale_factor=2.0))
    np.testing.assert_array_equal(doubled(jnp.arange(3.0)), [0, 2, 4])
    np.testing.assert_array_equal(jax.grad(lambda x: doubled(x).sum())(jnp.ones(2)), [2, 2])


def test_a_wrong_choice_of_mechanism_is_refused(monkeypatch):
    monkeypatch.setenv(JAX_CALL, "carrier_pigeon")
    mechanism._mechanism.cache_clear()
    with pytest.raises(UsageError, match=r"DISTRUN_JAX_CALL='carrier_pigeon'.*auto, ffi, io_callback"):
        jax.jit(lambda x: distrun.allreduce(x, prescale_factor=3.0))(jnp.ones(2))


def test_shapes_that_a_graph_cannot_have_are_refused():
    with pytest.raises(UsageError, match="0-dimensional"):
        result_shape(Call("allgather", "x"), ())
    assert result_shape(Call("reducescatter", "x"), (5, 2)) == (5, 2)
