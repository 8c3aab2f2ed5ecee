"""Handwritten digits on any number of ranks: what a script of JAX and optax needs for distrun, marked 1 to 6.

    python jax_digits.py                  one process, as before
    distrun -np 4 python jax_digits.py    four; with `-H a:2,b:2` on two hosts
    mpirun -np 4 python jax_digits.py     the same, started by MPI

`--check` proves the point: all ranks end with the same bits, and with the weights of one process that saw all the data.
"""

import argparse
import hashlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import distrun.jax as distrun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.03, help="for one rank (default: %(default)s)")
    parser.add_argument(
        "--warmup", type=int, default=2, help="epochs until the full learning rate (default: %(default)s)"
    )
    parser.add_argument(
        "--check", action="store_true", help="check the result against one process; exit with 1 if wrong"
    )
    args = parser.parse_args()

    distrun.init()  # 1. join the other ranks
    train_data, test_data = digits()
    steps = len(train_data[0]) // (args.batch_size * distrun.size())

    # 2. together the ranks have a larger batch, so they take larger steps, after a warm-up
    rate = optax.linear_schedule(args.lr, args.lr * distrun.size(), args.warmup * steps)
    # 3. `update` averages the gradients over the ranks, in the jitted step too
    optimizer = distrun.DistributedOptimizer(optax.sgd(rate, momentum=0.9))
    params = network(seed=distrun.rank())
    # 4. all ranks start from what rank 0 has
    params = distrun.broadcast_parameters(params, root_rank=0)
    state = optimizer.init(params)

    for epoch in range(args.epochs):
        order = np.random.default_rng(epoch).permutation(len(train_data[0]))
        for step in range(steps):
            combined = order[step * args.batch_size * distrun.size() :][: args.batch_size * distrun.size()]
            mine = combined[distrun.rank() :: distrun.size()]  # 5. each rank takes another part of the data
            params, state, loss = train_step(optimizer, params, state, *(part[mine] for part in train_data))
        last_loss = float(distrun.allreduce(loss))  # the average over the ranks
        accuracy = evaluate(params, test_data)
        if distrun.rank() == 0:  # 6. one rank prints and writes
            print(f"epoch {epoch + 1}: last loss {last_loss:.3f}, test accuracy {accuracy:.1%}", flush=True)

    if args.check:
        check("test accuracy is at least 96 %", accuracy >= 0.96)
        check("all ranks have bit-identical weights", len(set(distrun.allgather_object(digest(params)))) == 1)
        check(f"{distrun.size()} ranks equal one process on the combined batch", equals_one_process(train_data))


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return scikit-learn's 1797 images, divided into training and test data in the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[360:], order[:360]
    return (images[train], labels[train]), (images[test], labels[test])


def network(seed: int) -> dict[str, jax.Array]:
    shapes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 16, 32), "dense": (512, 10)}
    random = np.random.default_rng(seed)
    kernels = {name: random.standard_normal(shape) / np.prod(shape[:-1]) ** 0.5 for name, shape in shapes.items()}
    return jax.tree.map(jnp.float32, kernels | {"bias1": np.zeros(16), "bias2": np.zeros(32)})


def predict(params: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    for conv, bias in (("conv1", "bias1"), ("conv2", "bias2")):
        layout = ("NHWC", "HWIO", "NHWC")
        images = jax.lax.conv_general_dilated(images, params[conv], (1, 1), "SAME", dimension_numbers=layout)
        images = jax.nn.relu(images + params[bias])
    pooled = images.reshape(-1, 4, 2, 4, 2, 32).max((2, 4))
    return pooled.reshape(-1, 512) @ params["dense"]


def cross_entropy(params: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(predict(params, images), labels).mean()


@partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
def train_step(optimizer, params, state, images, labels):
    loss, gradients = jax.value_and_grad(cross_entropy)(params, images, labels)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


@jax.jit
def count_right(params: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the number of recognised images, of all ranks together."""
    return distrun.allreduce((predict(params, images).argmax(1) == labels).sum(), distrun.Sum)


def evaluate(params: dict[str, jax.Array], data: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the accuracy on all of `data`: each rank counts in its part, and the counts are added up."""
    images, labels = (part[distrun.rank() :: distrun.size()] for part in data)
    return float(count_right(params, images, labels)) / len(data[0])


# The checks -----------------------------------------------------------------------------------------------------------


def equals_one_process(data: tuple[np.ndarray, np.ndarray], steps: int = 10, rows: int = 16) -> bool:
    """Train twice from the same start: by all ranks together, and plainly on the combined batches."""
    plain = optax.sgd(0.05, momentum=0.9)
    combined = rows * distrun.size()
    ends = []
    for optimizer, part in (
        (distrun.DistributedOptimizer(plain), slice(distrun.rank(), None, distrun.size())),
        (plain, slice(None)),
    ):
        params = network(seed=1)
        state = optimizer.init(params)
        for step in range(steps):
            chosen = np.arange(step * combined, (step + 1) * combined)[part] % len(data[0])
            params, state, _ = train_step(optimizer, params, state, *(array[chosen] for array in data))
        ends.append(params)
    return all(jax.tree.leaves(jax.tree.map(partial(np.allclose, rtol=0, atol=1e-5), *ends)))


def digest(params: dict[str, jax.Array]) -> str:
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))).hexdigest()


def check(what: str, is_so: bool) -> None:
    everywhere = all(distrun.allgather_object(is_so))
    if distrun.rank() == 0:
        print(f"check: {what} ... {'ok' if everywhere else 'FAILED'}", flush=True)
    if not everywhere:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
