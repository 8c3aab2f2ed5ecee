"""Handwritten digits with Keras 3 on any number of ranks: what a training script needs for distrun, marked 1 to 6.

    python keras_digits.py                      one process, as before
    distrun -np 2 python keras_digits.py        two; with `-H a:2,b:2` four on two hosts
    KERAS_BACKEND=jax distrun -np 2 python keras_digits.py      or tensorflow, or torch

`--check` proves the point: all ranks end with the same bits, and with the weights of one process that saw all the data.
"""

import argparse
import hashlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from sklearn.datasets import load_digits

import distrun.keras as distrun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.05, help="for one rank (default: %(default)s)")
    parser.add_argument(
        "--warmup", type=int, default=2, help="epochs until the full learning rate (default: %(default)s)"
    )
    parser.add_argument("--checkpoint", help="file that rank 0 writes at the end, and all start from if it exists")
    parser.add_argument(
        "--check", action="store_true", help="check the result against one process; exit with 1 if wrong"
    )
    args = parser.parse_args()

    distrun.init()  # 1. join the other ranks
    keras.utils.set_random_seed(42)
    train_data, test_data = digits()

    # 2. each rank takes another part of the data, as large as that of the others
    images, labels = part_of(train_data)

    callbacks = [distrun.callbacks.MetricAverageCallback()]
    if args.checkpoint and os.path.exists(args.checkpoint):
        model = distrun.load_model(args.checkpoint)  # its optimizer is distributed again, and goes on where it was
    else:
        model = network()
        # 3. together the ranks have a larger batch, so they take larger steps, after a warm-up
        rate = args.lr * distrun.size()
        callbacks.append(distrun.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=args.warmup))
        # 4. from here on the optimizer takes the gradients of all ranks, averaged
        optimizer = distrun.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
        model.compile(optimizer, loss(), metrics=["accuracy"])

    # 5. all ranks start from what rank 0 has
    callbacks.insert(0, distrun.callbacks.BroadcastGlobalVariablesCallback(root_rank=0))

    model.fit(
        images,
        labels,
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_data=part_of(test_data),
        callbacks=callbacks,
        verbose=2 if distrun.rank() == 0 else 0,  # 6. one rank prints and writes
    )
    if args.checkpoint and distrun.rank() == 0:
        model.save(args.checkpoint)  # a plain Keras file, which loads without distrun as well
    if args.check:
        check("test accuracy is at least 96 %", model.evaluate(*test_data, verbose=0)[1] >= 0.96)
        check("all ranks have bit-identical weights", len(set(distrun.allgather_object(digest(model)))) == 1)
        check(f"{distrun.size()} ranks equal one process on the combined batch", equals_one_process(train_data))


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return scikit-learn's 1797 images, divided into training and test data in the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[360:], order[:360]
    return (images[train], labels[train]), (images[test], labels[test])


def part_of(data: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return this rank's rows, as many as on each other rank; the last few may be left out."""
    rows = len(data[0]) // distrun.size()
    start = distrun.rank() * rows
    return data[0][start : start + rows], data[1][start : start + rows]


def network() -> keras.Model:
    conv = [keras.layers.Conv2D(filters, 3, padding="same", activation="relu") for filters in (16, 32)]
    return keras.Sequential(
        [keras.Input((8, 8, 1)), *conv, keras.layers.MaxPooling2D(), keras.layers.Flatten(), keras.layers.Dense(10)]
    )


def loss() -> keras.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


# The checks -----------------------------------------------------------------------------------------------------------


def equals_one_process(data: tuple[np.ndarray, np.ndarray], steps: int = 10, rows: int = 16) -> bool:
    """Train twice from the same start: by all ranks together, and plainly on the combined batches."""
    together, alone = network(), network()
    distrun.broadcast_variables(together.weights)
    alone.set_weights(together.get_weights())
    together.compile(distrun.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)), loss())
    alone.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss())
    combined = rows * distrun.size()
    for step in range(steps):
        batch = np.arange(step * combined, (step + 1) * combined) % len(data[0])
        mine = batch[distrun.rank() :: distrun.size()]
        together.train_on_batch(data[0][mine], data[1][mine])
        alone.train_on_batch(data[0][batch], data[1][batch])
    pairs = zip(together.get_weights(), alone.get_weights(), strict=True)
    return all(np.allclose(one, other, rtol=0, atol=1e-5) for one, other in pairs)


def digest(model: keras.Model) -> str:
    return hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()


def check(what: str, is_so: bool) -> None:
    everywhere = all(distrun.allgather_object(bool(is_so)))
    if distrun.rank() == 0:
        print(f"check: {what} ... {'ok' if everywhere else 'FAILED'}", flush=True)
    if not everywhere:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
