"""JAX: the cost that data parallelism adds to a jitted step of optax, with jax.distributed and with distrun.jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.frameworks.ranks import (
    ALONE,
    LARGE,
    RATE,
    SMALL,
    TENSORS_200,
    Size,
    Training,
    Ways,
    main,
    meeting,
    steps,
)

GLOO, DISTRUN = "gloo", "distrun"

Tree = Any


def gloo() -> Ways:
    """Return the trainings by XLA's collectives between processes: jax.distributed, which on CPUs uses gloo."""
    jax.distributed.initialize(*meeting())
    mesh = Mesh(np.array(jax.devices()), ("ranks",))

    def everywhere(array: Any) -> Any:
        return jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec()), array)

    def sharded(array: Any) -> Any:
        return jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("ranks")), array)

    def start(size: Size) -> Training:
        def mean(gradients: Tree) -> Tree:
            return jax.lax.pmean(gradients, "ranks")

        whole, split = PartitionSpec(), PartitionSpec("ranks")
        step = jax.shard_map(
            _step(optax.sgd(RATE), mean),
            mesh=mesh,
            in_specs=(whole, whole, split, split),
            out_specs=whole,
            check_vma=False,
        )
        return _training(size, optax.sgd(RATE), step, everywhere, sharded)

    return {ALONE: _alone, GLOO: start}


def distrun() -> Ways:
    """Return the trainings by distrun's optimizer."""
    import distrun.jax as dj

    dj.init()

    def start(size: Size) -> Training:
        optimizer = dj.DistributedOptimizer(optax.sgd(RATE))
        return _training(size, optimizer, _step(optimizer))

    return {ALONE: _alone, DISTRUN: start}


def _alone(size: Size) -> Training:
    return _training(size, optax.sgd(RATE), _step(optax.sgd(RATE)))


def _step(
    optimizer: optax.GradientTransformation, reduce: Callable[[Tree], Tree] = lambda gradients: gradients
) -> Callable[..., tuple[Tree, Tree]]:
    def step(weights: Tree, state: Tree, features: Any, targets: Any) -> tuple[Tree, Tree]:
        gradients = reduce(jax.grad(_loss)(weights, features, targets))
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state

    return step


def _loss(weights: Tree, features: Any, targets: Any) -> Any:
    outputs = features
    for number, (kernel, bias) in enumerate(weights):
        outputs = (outputs if number == 0 else jax.nn.relu(outputs)) @ kernel + bias
    return jnp.mean(jnp.square(outputs - targets))


def _training(
    size: Size,
    optimizer: optax.GradientTransformation,
    step: Callable[..., tuple[Tree, Tree]],
    weights_of: Callable[[Any], Any] = jnp.asarray,
    batch_of: Callable[[Any], Any] = jnp.asarray,
) -> Training:
    step = jax.jit(step, donate_argnums=(0, 1))
    weights = jax.tree.map(weights_of, size.weights())
    state = weights, jax.tree.map(weights_of, optimizer.init(weights))
    features, targets = map(batch_of, size.batch())

    def advance() -> None:
        nonlocal state
        state = step(*state, features, targets)

    return Training(steps(advance, lambda: jax.block_until_ready(state)), lambda: jax.tree.leaves(state[0]))


if __name__ == "__main__":
    main((SMALL, TENSORS_200, LARGE), {GLOO: gloo, DISTRUN: distrun})
