"""Programs under way while the main thread goes on: nothing is mixed up, whatever overtakes what."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from checking import check, close, run_checks, same_on_all_ranks

import distrun
import distrun.jax as distrun_jax

distrun_jax.init()
RANK, SIZE = distrun_jax.rank(), distrun_jax.size()
WHOLE = SIZE * (SIZE + 1) / 2


@jax.jit
def slow(matrix):
    """Keeps a program busy before its collective."""
    return distrun_jax.allreduce(matrix @ matrix @ matrix, distrun_jax.Sum, name="same name")


@jax.jit
def quick(array):
    return distrun_jax.allreduce(array, distrun_jax.Sum, name="same name")


@check
def collectives_of_the_main_thread_beside_a_program_under_way():
    for round_ in range(50):
        factor = float(round_ * (RANK + 1))
        under_way = slow(jnp.eye(300) * (RANK + 1))
        jitted = quick(jnp.full(4, factor))
        eager = distrun_jax.allreduce(jnp.full(4, factor), distrun_jax.Sum, name="same name")
        unnamed = distrun_jax.allreduce(jnp.full(4, factor), distrun_jax.Sum)
        numpy = distrun.allreduce(np.full(4, factor, np.float32), op=distrun.Sum, name="same name")
        everybody = distrun_jax.allgather_object(RANK)
        for result in (jitted, eager, unnamed, numpy):
            close(result, np.full(4, round_ * WHOLE))
        assert everybody == list(range(SIZE))
        close(under_way[0, 0], sum((rank + 1) ** 3 for rank in range(SIZE)))


@check
def many_programs_under_way_at_once():
    results = [slow(jnp.eye(100) * (RANK + step)) for step in range(20)]
    results += [quick(jnp.full(3, float(step))) for step in range(20)]
    for step in range(20):
        close(results[step][0, 0], sum((rank + step) ** 3 for rank in range(SIZE)))
        close(results[20 + step], np.full(3, float(step * SIZE)))


@check
def a_rank_that_traces_a_step_anew_by_itself():
    optimizer = distrun_jax.DistributedOptimizer(optax.sgd(0.1))

    @jax.jit
    def step(weights, batch):
        gradients = jax.grad(lambda weights: jnp.mean((batch @ weights) ** 2))(weights)
        updates, _ = optimizer.update(gradients, optimizer.init(weights))
        return optax.apply_updates(weights, updates), distrun_jax.allreduce(weights.sum())

    weights = jnp.ones((3, 2))
    for count in range(6):
        rows = 2 if RANK == 1 and count % 2 else 4  # rank 1 meets a new shape, the others none
        weights, total = step(weights, jnp.ones((rows, 3)) * (RANK + 1))
    assert same_on_all_ranks((weights, total))
    assert np.isfinite(weights).all()


@check
def donated_arguments_are_used_up_and_results_are_right():
    step = jax.jit(lambda state, array: (distrun_jax.allreduce(state + array, distrun_jax.Sum), 1), donate_argnums=0)
    state = jnp.ones((64, 64)) * (RANK + 1)
    total = WHOLE
    for _ in range(5):
        before = state
        state, _ = step(state, jnp.ones((64, 64)))
        assert before.is_deleted()
        close(state[0, 0], total + SIZE)
        total = SIZE * (total + SIZE)
    given = jnp.ones(5) * (RANK + 1)
    close(quick(given), np.full(5, WHOLE))
    close(given, np.full(5, RANK + 1.0))  # not given away, so not reduced in place


run_checks()
if RANK == 1:
    for _ in range(5):
        last = slow(jnp.eye(500))  # leaves with this under way, which the others wait for
else:
    for _ in range(5):
        last = slow(jnp.eye(500))
    close(last[0, 0], SIZE)
