"""Handwritten digits with a tf.GradientTape on any number of ranks: what your own training loop needs, marked 1 to 6.

    python tensorflow_tape_digits.py                  one process, as before
    distrun -np 4 python tensorflow_tape_digits.py    four; with `-H a:2,b:2` on two hosts
    mpirun -np 4 python tensorflow_tape_digits.py     the same, started by MPI

`--check` proves the point: all ranks end with the same bits, and with the weights of one process that saw all the data.
For `model.fit` see keras_digits.py.
"""

import argparse
import hashlib

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import distrun.tensorflow as distrun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.03, help="for one rank (default: %(default)s)")
    parser.add_argument("--checkpoint", help="file that rank 0 writes at the end")
    parser.add_argument(
        "--check", action="store_true", help="check the result against one process; exit with 1 if wrong"
    )
    args = parser.parse_args()

    distrun.init()  # 1. join the other ranks
    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[distrun.local_rank() % len(gpus)], "GPU")
    tf.keras.utils.set_random_seed(42)
    train, test = digits()

    # 2. each rank takes another part of the data: of equal size, so that all take as many steps
    images, labels = (array[: len(array) // distrun.size() * distrun.size()] for array in train)
    part = slice(distrun.rank(), None, distrun.size())
    data = tf.data.Dataset.from_tensor_slices((images[part], labels[part]))
    data = data.shuffle(len(images), seed=42).batch(args.batch_size, drop_remainder=True)

    model = network()
    # 3. together the ranks have a larger batch, so they take larger steps
    optimizer = tf.keras.optimizers.SGD(args.lr * distrun.size(), momentum=0.9)
    optimizer.build(model.trainable_variables)
    # 4. all ranks start from what rank 0 has
    distrun.broadcast_variables(model.variables + optimizer.variables, root_rank=0)
    step = training_step(model, optimizer)

    for epoch in range(args.epochs):
        for batch in data:
            loss = step(*batch)
        last_loss = float(distrun.allreduce(loss, name="loss"))  # the average over the ranks
        accuracy = evaluate(model, test)
        if distrun.rank() == 0:  # 6. one rank prints and writes
            print(f"epoch {epoch + 1}: last loss {last_loss:.3f}, test accuracy {accuracy:.1%}", flush=True)

    if args.checkpoint and distrun.rank() == 0:
        model.save_weights(args.checkpoint)
    if args.check:
        check("test accuracy is at least 96 %", accuracy >= 0.96)
        check("all ranks have bit-identical weights", len(set(distrun.allgather_object(digest(model)))) == 1)
        check(f"{distrun.size()} ranks equal one process on the combined batch", equals_one_process(train))


def training_step(model, optimizer, wrap=distrun.DistributedGradientTape):
    """Return a function that trains the model on a batch."""
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = wrap(tape)  # 5. from here on `gradient` averages over the ranks
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def digits():
    """Return scikit-learn's 1797 images, divided into training and test data in the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
    order = np.random.default_rng(0).permutation(len(images))
    return (images[order[360:]], labels[order[360:]]), (images[order[:360]], labels[order[:360]])


def network(dtype="float32"):
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1), dtype=dtype),
            layers.Conv2D(16, 3, padding="same", activation="relu", dtype=dtype),
            layers.Conv2D(32, 3, padding="same", activation="relu", dtype=dtype),
            layers.MaxPooling2D(dtype=dtype),
            layers.Flatten(dtype=dtype),
            layers.Dense(10, dtype=dtype),
        ]
    )


def evaluate(model, data) -> float:
    """Return the accuracy on all of `data`: each rank counts in its part, and the counts are added up."""
    images, labels = (array[distrun.rank() :: distrun.size()] for array in data)
    right = tf.math.count_nonzero(tf.argmax(model(images), 1) == labels)
    return int(distrun.allreduce(right, op=distrun.Sum, name="right")) / len(data[0])


# The checks -----------------------------------------------------------------------------------------------------------


def equals_one_process(data, steps=10, rows=16) -> bool:
    """Train twice from one start, in double precision: by all ranks together, and plainly on the combined batches."""
    together, alone = network("float64"), network("float64")
    distrun.broadcast_variables(together.variables, root_rank=0)
    alone.set_weights(together.get_weights())
    ours = training_step(together, tf.keras.optimizers.SGD(0.05, momentum=0.9))
    plain = training_step(alone, tf.keras.optimizers.SGD(0.05, momentum=0.9), wrap=lambda tape: tape)
    combined = rows * distrun.size()
    for step in range(steps):
        images, labels = (array[np.arange(step * combined, (step + 1) * combined) % len(array)] for array in data)
        images = images.astype("float64")
        mine = slice(distrun.rank(), None, distrun.size())
        ours(images[mine], labels[mine])
        plain(images, labels)
    pairs = zip(together.get_weights(), alone.get_weights(), strict=True)
    return all(np.allclose(one, other, rtol=0, atol=1e-5) for one, other in pairs)


def digest(model) -> str:
    return hashlib.sha256(b"".join(weights.tobytes() for weights in model.get_weights())).hexdigest()


def check(what: str, is_so: bool) -> None:
    everywhere = all(distrun.allgather_object(is_so))
    if distrun.rank() == 0:
        print(f"check: {what} ... {'ok' if everywhere else 'FAILED'}", flush=True)
    if not everywhere:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
