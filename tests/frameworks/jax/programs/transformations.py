"""Collectives in everything that JAX makes of functions."""

import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from checking import check, close, run_checks
from expecting import raises

import distrun.jax as distrun
from distrun import UsageError

distrun.init()
RANK, SIZE = distrun.rank(), distrun.size()
OWN = jnp.arange(1.0, 2 * SIZE + 1) * (RANK + 1)
TOTAL = SIZE * (SIZE + 1) / 2  # the sum of all ranks' factors
BASE = np.arange(1.0, 2 * SIZE + 1)


def total(array, **options):
    return distrun.allreduce(array, distrun.Sum, **options)


def losses(function, arrays):
    """The sum of all ranks' losses, computed on one: what the gradients are those of."""
    return sum(function(rank, arrays) for rank in range(SIZE))


@check
def gradients_are_those_of_the_sum_of_all_losses():
    everybody = [jnp.asarray(BASE * (rank + 1)) for rank in range(SIZE)]

    ours = (
        lambda x: jnp.sum(jnp.sin(distrun.allreduce(x)) * (RANK + 1)),
        lambda x: jnp.sum(jnp.cos(total(x)) * (RANK + 1)),
    )
    truth = (
        lambda rank, arrays: jnp.sum(jnp.sin(sum(arrays) / SIZE) * (rank + 1)),
        lambda rank, arrays: jnp.sum(jnp.cos(sum(arrays)) * (rank + 1)),
    )
    for here, there in zip(ours, truth, strict=True):
        expected = jax.grad(partial(losses, there))(everybody)[RANK]
        for way in (lambda function: function, jax.jit):
            close(way(jax.grad(here))(OWN), expected, 1e-5)


@check
def gradients_of_the_other_collectives():
    weight = jnp.asarray(BASE)

    def gathered(x):  # averages what flows back
        return jnp.sum(distrun.allgather(x) * jnp.arange(2.0 * SIZE * SIZE) * (RANK + 1))

    def scattered(x):
        return jnp.sum(distrun.reducescatter(x, distrun.Sum) * weight[2 * RANK : 2 * RANK + 2])

    def exchanged(x):
        return jnp.sum(distrun.alltoall(x) * (RANK + 1))

    def sent(x):
        return jnp.sum(distrun.broadcast(x, 1) * weight * (RANK + 1))

    mean = TOTAL / SIZE
    expected = {
        gathered: np.arange(2.0 * SIZE * SIZE)[2 * SIZE * RANK : 2 * SIZE * (RANK + 1)] * mean,
        scattered: BASE,
        exchanged: np.repeat(np.arange(1.0, SIZE + 1), 2),
        sent: BASE * mean if RANK == 1 else np.zeros(2 * SIZE),
    }
    for function, gradient in expected.items():
        for way in (lambda function: function, jax.jit):
            close(way(jax.grad(function))(OWN), gradient, 1e-5)
    for way in (lambda function: function, jax.jit):
        with raises(UsageError, "op=max", "stop_gradient"):
            way(jax.grad(lambda x: distrun.allreduce(x, distrun.Max).sum()))(OWN)
        with raises(UsageError, "has no gradient", "multiple"):
            way(jax.grad(lambda x: distrun.reducescatter(x).sum()))(jnp.ones(SIZE + 1))


@check
def integers_on_the_side_have_no_gradients():
    def function(x):
        results = total({"x": x, "count": jnp.arange(3), "half": x.astype(jnp.bfloat16)})
        return (results["x"] ** 2).sum() + results["count"].sum() + results["half"].sum().astype(jnp.float32)

    for way in (lambda function: function, jax.jit):
        close(way(jax.grad(function))(OWN), 2 * SIZE * TOTAL * BASE + SIZE, 1e-2)


@check
def forward_and_second_derivatives():
    values, tangents = jax.jit(lambda x: jax.jvp(total, (x,), (x * 2,)))(OWN)
    close((values, tangents), (TOTAL * BASE, 2 * TOTAL * BASE))
    hessian = jax.jit(jax.hessian(lambda x: (total(x) ** 3).sum()))(jnp.ones(2) * (RANK + 1))
    close(hessian, np.eye(2) * 6 * TOTAL * SIZE**2, 1e-5)


@check
def batches_travel_at_once():
    batch = jnp.stack([OWN, OWN * 10, OWN * 100], axis=1)
    columns = np.stack([BASE, BASE * 10, BASE * 100], axis=1)
    for way in (lambda function: function, jax.jit):
        close(way(jax.vmap(total, 1, 1))(batch), TOTAL * columns)
        expected = np.concatenate([columns * (rank + 1) for rank in range(SIZE)])
        close(way(jax.vmap(distrun.allgather, 1, 1))(batch), expected)
        close(way(jax.vmap(distrun.reducescatter, 1, 1))(batch), (TOTAL * columns / SIZE)[2 * RANK : 2 * RANK + 2])
    pairs = jax.jit(jax.vmap(lambda x, y: total((x, y)), (1, None), 1))(batch, OWN)
    close(pairs, (TOTAL * columns, TOTAL * np.stack([BASE] * 3, axis=1)))
    rows = jax.jit(jax.vmap(jax.grad(lambda x: (total(x) ** 2).sum()), 1, 1))(batch)
    close(rows, 2 * SIZE * TOTAL * columns, 1e-5)


@check
def loops_and_branches():
    def body(carry, factor):
        carry = distrun.allreduce(jnp.sin(carry)) * factor
        return carry, total(carry)

    def looped(x):
        return jax.lax.scan(body, x, jnp.array([1.0, 2.0, 3.0]))

    def plain(arrays):
        outputs = []
        for factor in (1.0, 2.0, 3.0):
            arrays = [sum(map(jnp.sin, arrays)) / SIZE * factor] * SIZE
            outputs.append(sum(arrays))
        return arrays[0], jnp.stack(outputs)

    everybody = [jnp.asarray(BASE * (rank + 1)) for rank in range(SIZE)]
    close(jax.jit(looped)(OWN), plain(everybody), 1e-5)
    slopes = jax.grad(lambda arrays: SIZE * plain(arrays)[0].sum())(everybody)
    close(jax.jit(jax.grad(lambda x: looped(x)[0].sum()))(OWN), slopes[RANK], 1e-5)
    close(jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: total(y), x))(OWN), BASE * TOTAL * SIZE**2)
    doubled = jax.jit(lambda x: jax.lax.while_loop(lambda y: y.max() < 1e4, total, x))(jnp.ones(3))
    close(doubled, np.ones(3) * SIZE ** np.ceil(np.log(1e4) / np.log(SIZE)))
    branch = jax.jit(lambda here, x: jax.lax.cond(here, total, lambda y: y * 100, x))
    close((branch(True, OWN), branch(False, OWN)), (TOTAL * BASE, OWN * 100))


@check
def recomputation_and_custom_derivatives():
    @jax.checkpoint
    def block(x):
        return jnp.sin(total(jnp.sin(x)))

    base = jnp.asarray(BASE)
    expected = jax.grad(lambda x: jnp.sin(SIZE * jnp.sin(x)).sum())(base)
    for way in (lambda function: function, jax.jit):
        close(way(jax.grad(lambda x: block(x).sum()))(base), expected, 1e-4)

    @jax.custom_vjp
    def same(x):
        return total(x)

    same.defvjp(lambda x: (total(x), None), lambda _, cotangent: (total(cotangent) * 2,))
    close(jax.jit(jax.grad(lambda x: same(x).sum()))(OWN), np.full(2 * SIZE, 2.0 * SIZE))


@check
def a_function_called_twice_in_a_program_is_not_mixed_up():
    @jax.jit
    def inner(x):
        return total(x @ x)

    @jax.jit
    def outer(x, y):
        return inner(x), inner(y), total(x), inner(x + y), total(y)

    for round_ in range(10):
        x, y = jnp.eye(40) * round_, jnp.eye(40) * 100
        results = [result[0, 0] for result in outer(x, y)]
        close(results, [SIZE * value for value in (round_**2, 1e4, round_, (round_ + 100) ** 2, 100)])


@check
def a_function_traced_by_itself_and_then_inside_of_another():
    @jax.jit
    def step(x):
        return total(x)

    close(step(OWN), TOTAL * BASE)
    if os.environ.get("DISTRUN_JAX_CALL") != "ffi":  # on GPUs, JAX knows of the order everywhere
        with raises(UsageError, "first called by itself", "jax.clear_caches()"):
            jax.jit(lambda x: step(x) + step(x + 1))(OWN)
        jax.clear_caches()
    close(jax.jit(lambda x: step(x) + step(x + 1))(OWN), 2 * TOTAL * BASE + SIZE)
    close(step(OWN), TOTAL * BASE)


@check
def results_that_only_one_rank_uses():
    function = jax.jit(lambda x: total(x, name="unused") if RANK == 0 else (total(x, name="unused"), x)[1])
    close(function(OWN), TOTAL * BASE if RANK == 0 else OWN)


@check
def without_jit():
    with jax.disable_jit():
        close(jax.jit(total)(OWN), TOTAL * BASE)
        close(jax.grad(lambda x: jax.jit(total)(x).sum())(OWN), np.full(2 * SIZE, float(SIZE)))
    assert jax.eval_shape(distrun.allgather, OWN).shape == (2 * SIZE * SIZE,)
    close(jax.jit(total).lower(OWN).compile()(OWN), TOTAL * BASE)


run_checks()
