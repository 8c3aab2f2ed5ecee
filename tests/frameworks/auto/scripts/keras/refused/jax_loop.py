"""Train with JAX alone: a loop of one's own with jax.grad and optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

digits = load_digits()
x, y = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)
k1, k2 = jax.random.split(jax.random.PRNGKey(0))
params = {"w1": 0.2 * jax.random.normal(k1, (64, 32)), "w2": 0.2 * jax.random.normal(k2, (32, 10))}


def loss_fn(params, x, y):
    logits = jnp.tanh(x @ params["w1"]) @ params["w2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


optimizer = optax.adam(1e-2)
opt_state = optimizer.init(params)


@jax.jit
def train_step(params, opt_state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


rng = np.random.default_rng(0)
for epoch in range(4):
    order = rng.permutation(1400)
    for start in range(0, 1400, 50):
        batch = order[start : start + 50]
        params, opt_state, loss = train_step(params, opt_state, x[batch], y[batch])
    print(f"epoch {epoch}: test loss {loss_fn(params, x[1400:], y[1400:]):.4f}")
