"""DiLoCo with optax: hosts train by themselves, and come together now and then."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from checking import same_on_all_ranks as same
from expecting import raises

import distrun.jax as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
HOSTS = hvd.local_size() < SIZE


def start():
    keys = jax.random.split(jax.random.key(3), 2)
    return {"hidden": jax.random.normal(keys[0], (6, 800)) / 3, "out": jax.random.normal(keys[1], (800, 1)) / 30}


def loss(params, inputs):
    outputs = jnp.tanh(inputs @ params["hidden"]) @ params["out"]
    return jnp.square(outputs - jnp.sin(inputs.sum(1, keepdims=True))).mean()


def batch(step, rank):
    return jax.random.normal(jax.random.key(1000 * step + rank), (8, 6))


def unseen_loss(params):
    return float(loss(params, jnp.concatenate([batch(999, number) for number in range(9)])))


def train(optimizer, params, steps, first=0, state=None):
    @jax.jit
    def inner(params, state, inputs):
        updates, state = optimizer.update(jax.grad(loss)(params, inputs), state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params) if state is None else state
    for step in range(first, first + steps):
        params, state = inner(params, state, batch(step, RANK))
        params = optimizer.step(params)
    return params, state


def published(hosts, steps, every):
    """The parameters after so many steps of plain DiLoCo on all hosts, computed here."""
    inner = optax.sgd(0.003)
    anchor = start()
    velocity = jax.tree.map(jnp.zeros_like, anchor)
    models = [start() for _ in hosts]
    for step in range(steps):
        for place, ranks in enumerate(hosts):
            inputs = jnp.concatenate([batch(step, rank) for rank in ranks])
            updates, _ = inner.update(jax.grad(loss)(models[place], inputs), inner.init(models[place]))
            models[place] = optax.apply_updates(models[place], updates)
        if (step + 1) % every == 0:
            shares = [len(ranks) / SIZE for ranks in hosts]
            mean = jax.tree.map(
                lambda *leaves, shares=shares: sum(s * each for s, each in zip(shares, leaves, strict=True)), *models
            )
            moved = jax.tree.map(jnp.subtract, anchor, mean)
            velocity = jax.tree.map(lambda v, d: 0.9 * v + d, velocity, moved)
            anchor = jax.tree.map(lambda a, d, v: a - 0.7 * (d + 0.9 * v), anchor, moved, velocity)
            models = [anchor for _ in hosts]
    return anchor


optimizer = hvd.DiLoCo(optax.sgd(0.003), start(), every=4, wire=None, overlap=False, fragments=1)
hosts = list(dict.fromkeys(hvd.allgather_object(tuple(optimizer.process_set.ranks))))
params, _ = train(optimizer, start(), 12)
assert same(params)
for own, expected in zip(
    jax.tree_util.tree_leaves(params), jax.tree_util.tree_leaves(published(hosts, 12, 4)), strict=True
):
    assert np.allclose(own, expected, rtol=1e-4, atol=1e-6)

optimizer = hvd.DiLoCo(optax.adam(1e-3), start(), every=6, fragments=2)
params, state = train(optimizer, start(), 21)
assert same(params) != HOSTS
assert optimizer.process_set.size() == 1 or isinstance(params["out"], jax.Array)
params = optimizer.merge(params)
assert same(params)
saved = optimizer.state_dict()
assert saved["step"] == 21
again = hvd.DiLoCo(optax.adam(1e-3), start(), every=6, fragments=2)
again.load_state_dict(saved)
assert again.state_dict()["versions"] == saved["versions"]
continued = [train(each, params, 6, 21, state)[0] for each in (again, optimizer)]
assert abs(unseen_loss(continued[0]) - unseen_loss(continued[1])) < 0.02

params = train(hvd.LocalSGD(optax.sgd(0.003), start(), every=3), start(), 3)[0]
assert same(params)

apart = {"a": jnp.full(9, float(RANK))}
with raises(ValueError, "have them begin with those of one"):
    hvd.DiLoCo(optax.sgd(0.1), apart, fragments=1).step(apart)
with raises(ValueError, "the leaf ['a'] is of int32"):
    hvd.DiLoCo(optax.sgd(0.1), {"a": jnp.arange(9)}, fragments=1)
with raises(ValueError, "fragments=4 is more than the 2 parameters"):
    hvd.DiLoCo(optax.sgd(0.1), start())
with raises(ValueError, "is a DistributedOptimizer already"):
    hvd.DiLoCo(hvd.DistributedOptimizer(optax.sgd(0.1)), start(), fragments=1)
with raises(ValueError, "give it the same tree in every step"):
    optimizer.step({"hidden": params["hidden"]})
hvd.barrier()
print("done")
