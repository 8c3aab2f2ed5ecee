"""Two spirals, told apart by a small network in plain numpy: data-parallel training without a framework.

    python numpy_spirals.py                  one process
    distrun -np 4 python numpy_spirals.py    four; each takes a quarter of every batch

`--check` proves the point: all ranks end with the same bits, and with the weights of one process that saw all the data.
"""

import argparse
import hashlib

import numpy as np

import distrun

Weights = list[np.ndarray]  # matrix and offset of each layer, in order
HIDDEN = 32
BATCH = 240  # of all ranks together; divisible by 2, 3, 4, 5, 6 and 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument(
        "--check", action="store_true", help="check the result against one process; exit with 1 if wrong"
    )
    args = parser.parse_args()

    distrun.init()
    if BATCH % distrun.size():
        parser.error(f"{distrun.size()} ranks cannot divide a batch of {BATCH} equally")
    points, labels = spirals()
    weights = [distrun.broadcast(array, root_rank=0, name=f"start.{i}") for i, array in enumerate(network())]

    weights = train(weights, points, labels, args.steps, args.lr, distrun.rank(), distrun.size())
    accuracy = np.mean((forward(weights, points)[-1][:, 0] > 0) == labels)
    if distrun.rank() == 0:
        print(f"ranks: {distrun.size()}, steps: {args.steps}, accuracy: {accuracy:.1%}", flush=True)

    if args.check:
        check("accuracy is at least 95 %", bool(accuracy >= 0.95))
        check("all ranks have bit-identical weights", len(set(distrun.allgather_object(digest(weights)))) == 1)
        few = train(network(), points, labels, 50, args.lr, distrun.rank(), distrun.size())
        alone = train(network(), points, labels, 50, args.lr, rank=0, size=1)
        same = all(np.allclose(one, other, rtol=0, atol=1e-9) for one, other in zip(few, alone, strict=True))
        check(f"{distrun.size()} ranks equal one process on the combined batch", same)


def train(
    weights: Weights, points: np.ndarray, labels: np.ndarray, steps: int, lr: float, rank: int, size: int
) -> Weights:
    """Return the weights after `steps` steps of Adam on this rank's parts of batches, by the ranks' mean gradients."""
    first, second = ([np.zeros_like(array) for array in weights] for _ in range(2))  # moments of the gradients
    for step in range(1, steps + 1):
        batch = (np.arange(BATCH) + step * BATCH) % len(points)
        mine = batch[rank::size]
        gradients = backward(weights, points[mine], labels[mine])
        if size > 1:
            gradients = distrun.grouped_allreduce(gradients, name="gradients")  # the mean over the ranks
        first = [0.9 * one + 0.1 * gradient for one, gradient in zip(first, gradients, strict=True)]
        second = [0.999 * two + 0.001 * gradient**2 for two, gradient in zip(second, gradients, strict=True)]
        rate = lr * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
        moments = zip(weights, first, second, strict=True)
        weights = [array - rate * one / (np.sqrt(two) + 1e-8) for array, one, two in moments]
    return weights


def spirals(count: int = 1200) -> tuple[np.ndarray, np.ndarray]:
    """Return points of shape (count, 2) on two spirals with some noise, in random order, and their spirals: 0 or 1."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, count)
    turn = np.sqrt(random.random(count)) * 3 * np.pi
    points = np.stack([turn * np.cos(turn + np.pi * labels), turn * np.sin(turn + np.pi * labels)], axis=1)
    return (points + random.normal(0, 0.2, points.shape)) / (3 * np.pi), labels


def network() -> Weights:
    """Return the first weights, the same on each call: two hidden layers and one output."""
    random = np.random.default_rng(1)
    sizes = [(2, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 1)]
    layers = [
        (random.normal(0, (2 / inputs) ** 0.5, (inputs, outputs)), np.zeros(outputs)) for inputs, outputs in sizes
    ]
    return [array for layer in layers for array in layer]


def forward(weights: Weights, points: np.ndarray) -> list[np.ndarray]:
    """Return the inputs of each layer and, last, the network's output before the sigmoid, of shape (points, 1)."""
    values = [points]
    for matrix, offset in zip(weights[::2], weights[1::2], strict=True):
        before = values[-1] @ matrix + offset
        values.append(before if matrix is weights[-2] else np.maximum(before, 0))
    return values


def backward(weights: Weights, points: np.ndarray, labels: np.ndarray) -> Weights:
    """Return the gradients of the mean cross-entropy, in the order of `weights`."""
    *inputs, output = forward(weights, points)
    error = (1 / (1 + np.exp(-output)) - labels[:, None]) / len(points)
    gradients: Weights = []
    for matrix, values in zip(weights[-2::-2], reversed(inputs), strict=True):
        gradients[:0] = [values.T @ error, error.sum(0)]
        error = (error @ matrix.T) * (values > 0)
    return gradients


def digest(weights: Weights) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in weights)).hexdigest()


def check(what: str, is_so: bool) -> None:
    everywhere = all(distrun.allgather_object(is_so))
    if distrun.rank() == 0:
        print(f"check: {what} ... {'ok' if everywhere else 'FAILED'}", flush=True)
    if not everywhere:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
