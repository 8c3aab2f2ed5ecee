"""Checkpoints of JAX: pytrees, states of optax, keys of random numbers."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distrun.checkpoint import CheckpointManager
from distrun.errors import UsageError

pytestmark = pytest.mark.gate


class State:
    """A node that only JAX knows."""

    def __init__(self, params, opt_state):
        self.params, self.opt_state = params, opt_state


jax.tree_util.register_dataclass(State, data_fields=["params", "opt_state"], meta_fields=[])


def test_a_run_that_is_resumed_ends_with_the_same_bits(tmp_path):
    optax = pytest.importorskip("optax")
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))

    @jax.jit
    def step(params, state, key):
        loss = lambda params: jnp.sum((params["w"] @ jax.random.normal(key, (3,)) + params["b"]) ** 2)  # noqa: E731
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state, jax.random.split(key)[0]

    def fresh():
        params = {"w": jnp.ones((2, 3)), "b": jnp.zeros(2, jnp.bfloat16)}
        return params, optimizer.init(params), jax.random.key(7)

    def train(params, state, key):
        for _ in range(3):
            params, state, key = step(params, state, key)
        return params, state, key

    with CheckpointManager(tmp_path) as checkpoints:
        halfway = train(*fresh())
        checkpoints.save(3, state=halfway)
        end = train(*halfway)
    start = CheckpointManager(tmp_path).restore(state=fresh())
    assert jax.tree.structure(start.state) == jax.tree.structure(halfway)
    assert jax.tree.all(jax.tree.map(_same, train(*start.state), end))
    assert start.state[2].dtype == jax.random.key(0).dtype


def _same(one, other):
    one, other = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in (one, other))
    return one.dtype == other.dtype and bool((one == other).all()) and one.sharding == other.sharding


def test_arrays_that_are_donated_meanwhile_are_saved_as_they_were(tmp_path):
    array = jnp.arange(1000.0)
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(1, array=array)
        jax.jit(lambda x: x + 1, donate_argnums=0)(array).block_until_ready()
    assert np.array_equal(checkpoints.restore(array=None).array, np.arange(1000.0))


def test_nodes_that_only_jax_knows_take_the_type_of_what_they_replace(tmp_path):
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(1, state=State([jnp.ones(2)], {"n": 3, "none": None}))
    state = checkpoints.restore(state=State([None], None)).state
    assert isinstance(state, State)
    assert state.params[0].tolist() == [1, 1]
    assert state.opt_state == {"n": 3, "none": None}
    with pytest.raises(UsageError, match=r"the checkpoint has for state a .*State of 2 parts, and a dict is given"):
        checkpoints.restore(state={})


def test_arrays_go_where_those_are_that_they_replace(tmp_path):
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(1, array=jnp.arange(4))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), "x")
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    found = checkpoints.restore(array=jax.device_put(jnp.zeros(4, int), sharding)).array
    assert found.sharding == sharding
    assert found.tolist() == [0, 1, 2, 3]


def test_inside_of_a_jitted_function_saving_is_refused(tmp_path):
    checkpoints = CheckpointManager(tmp_path)
    with pytest.raises(UsageError, match=r"^array has no value yet inside of a jitted function: call save outside"):
        jax.jit(lambda x: checkpoints.save(1, array=x))(jnp.ones(2))


class Point(NamedTuple):
    x: jax.Array


def test_functions_in_a_tree_are_refused_with_their_place(tmp_path):
    with pytest.raises(UsageError, match=r"^state\.0 is a function, which a checkpoint cannot hold"):
        CheckpointManager(tmp_path).save(1, state=Point(lambda: None))
