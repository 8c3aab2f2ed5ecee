"""Handwritten digits with Keras 3, on ranks that come and go: what keras_digits.py needs for it, marked 1 to 4.

    distrun -np 2 --elastic python keras_digits_elastic.py                       a rank that dies is replaced
    distrun -np 2 --min-np 1 --spares 1 python keras_digits_elastic.py           by one that has imported all, at once
    KERAS_BACKEND=jax distrun -np 2 --elastic python keras_digits_elastic.py     or tensorflow, or torch

`--kill EPOCH:BATCH` has rank 1 die there, once, and `--check` proves that nothing was lost.
"""

import argparse
import hashlib
import os
import signal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from sklearn.datasets import load_digits

import distrun.keras as distrun
from distrun.data import shard
from distrun.keras import elastic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.05, help="for one rank (default: %(default)s)")
    parser.add_argument("--kill", metavar="EPOCH:BATCH", help="have rank 1 die at a batch, both counted from 0")
    parser.add_argument("--check", action="store_true", help="check the result; exit with 1 if wrong")
    args = parser.parse_args()

    distrun.init()  # a newcomer waits here until it is given a rank
    keras.utils.set_random_seed(42)
    train_data, test_data = digits()

    model = network()
    rate = args.lr * distrun.size()
    optimizer = distrun.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

    # 1. the state: what a training goes on from. All ranks take it from the one that is furthest
    state = elastic.KerasState(model)

    @elastic.run  # 2. when ranks come or go, all that are left come back into this function
    def train(state: elastic.KerasState) -> keras.callbacks.History:
        # 3. what is left of an epoch is dealt out to the ranks that there are
        batches = shard(train_data, batch_size=args.batch_size, shuffle=True, seed=42)
        callbacks = [
            elastic.ElasticCallback(state),  # 4. a step boundary after each batch; fit goes on in the same epoch
            distrun.callbacks.MetricAverageCallback(),
            distrun.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2),  # in proportion to the ranks
        ]
        if args.kill:
            callbacks.append(Death(*map(int, args.kill.split(":"))))
        return state.model.fit(
            batches, epochs=args.epochs, callbacks=callbacks, verbose=2 if distrun.rank() == 0 else 0
        )

    history = train(state)
    if args.check:
        check("test accuracy is at least 96 %", model.evaluate(*test_data, verbose=0)[1] >= 0.96)
        check("all ranks have bit-identical weights", len(set(distrun.allgather_object(digest(model)))) == 1)
        check("each epoch was trained once", history.epoch == list(range(args.epochs)))
        if args.kill:
            check("a rank was replaced", max(distrun.allgather_object(int(os.environ["DISTRUN_GENERATION"]))) > 1)


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return scikit-learn's 1797 images, divided into training and test data in the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[360:], order[:360]
    return (images[train], labels[train]), (images[test], labels[test])


def network() -> keras.Model:
    conv = [keras.layers.Conv2D(filters, 3, padding="same", activation="relu") for filters in (16, 32)]
    return keras.Sequential(
        [keras.Input((8, 8, 1)), *conv, keras.layers.MaxPooling2D(), keras.layers.Flatten(), keras.layers.Dense(10)]
    )


class Death(keras.callbacks.Callback):
    """Kills rank 1, as the kernel does when memory runs out, in the first generation of ranks."""

    def __init__(self, epoch: int, batch: int) -> None:
        super().__init__()
        self.place = epoch, batch
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        is_first = os.environ.get("DISTRUN_GENERATION") == "1"
        if is_first and distrun.rank() == 1 and (self.epoch, batch) == self.place:
            print(f"rank 1 dies at batch {batch} of epoch {self.epoch}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


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
