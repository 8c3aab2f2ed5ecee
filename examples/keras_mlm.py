"""A small BERT that learns to fill in masked words, on any number of ranks and on the text of your choice.

    python keras_mlm.py                           one process, on Python's own documentation
    distrun -np 4 python keras_mlm.py             four; with `-H a:2,b:2` on two hosts
    distrun -np 4 python keras_mlm.py --text *.txt --save bert.keras

It needs `pip install keras-hub` and a backend of Keras: TensorFlow, or the one that KERAS_BACKEND names. What a
training script needs for distrun is marked 1 to 7. `--check` proves the point: all ranks end with the same bits, and
learn step by step like one process that has the batches of all.
"""

import argparse
import hashlib
import re
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import keras
import keras_hub
import numpy as np

import distrun.keras as distrun
from distrun.data import Division, Plan, shard

SEED = 42
MASK, UNKNOWN = 0, 1  # what stands for words that are to be filled in, and for rare ones
LENGTH = 32  # words in a sequence
MASKED = 5  # words of it to fill in
CHECKED = 50  # steps that `--check` compares

Data = tuple[dict[str, np.ndarray], np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, nargs="+", help="files to learn from (default: Python's documentation)")
    parser.add_argument("--epochs", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per rank (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=5e-4, help="for one rank (default: %(default)s)")
    parser.add_argument("--words", type=int, default=3000, help="size of the vocabulary (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--width", type=int, default=64, help="of a layer (default: %(default)s)")
    parser.add_argument("--log-dir", help="where rank 0 writes for TensorBoard (needs `pip install tensorboard`)")
    parser.add_argument("--save", help="file that rank 0 writes the model to, such as bert.keras")
    parser.add_argument(
        "--check", action="store_true", help="train without dropout; check the result, and exit with 1 if it is wrong"
    )
    args = parser.parse_args()

    distrun.init()  # 1. join the other ranks
    keras.utils.set_random_seed(SEED)
    train_data, test_data = examples(args.text, args.words)

    # 2. each rank takes another part of the data, and of what is evaluated
    batches = shard(train_data, args.batch_size, shuffle=True, seed=SEED, drop_remainder=True)
    test_inputs, test_words = shard(test_data, drop_remainder=True)

    model = bert(args)
    start = model.get_weights()
    # 3. together the ranks have a larger batch, so they take larger steps, after a warm-up
    optimizer = adam(args.lr * distrun.size(), args.epochs * len(batches))
    # 4. from here on the optimizer averages the gradients over the ranks
    prepare(model, distrun.DistributedOptimizer(optimizer))
    callbacks = [
        distrun.callbacks.BroadcastGlobalVariablesCallback(0),  # 5. all ranks start from what rank 0 has
        distrun.callbacks.MetricAverageCallback(),  # 6. metrics are those of all ranks
        *([curve := Curve()] if args.check else []),
    ]
    if args.log_dir:  # 7. one rank prints and writes
        callbacks.append(distrun.callbacks.OnRankZero(keras.callbacks.TensorBoard(args.log_dir)))
    verbose = 2 if distrun.rank() == 0 else 0
    model.fit(batches, epochs=args.epochs, callbacks=callbacks, verbose=verbose)

    results = model.evaluate(test_inputs, test_words, args.batch_size, verbose=0)
    loss, accuracy = np.mean(distrun.allgather_object(results), axis=0)
    if distrun.rank() == 0:
        print(f"of the words masked in other text, {accuracy:.1%} are found (loss {loss:.3f})", flush=True)
        if args.save:
            model.save(args.save)
    if args.check:
        check("all ranks have bit-identical weights", len(set(distrun.allgather_object(digest(model)))) == 1)
        together = np.mean(distrun.allgather_object(curve.losses), axis=0)
        check(
            f"{distrun.size()} ranks learn step by step as one process with the combined batch",
            distrun.rank() != 0 or follows(together, losses_alone(args, start, train_data, args.epochs * len(batches))),
        )


# The text -------------------------------------------------------------------------------------------------------------


def examples(files: list[Path] | None, size: int) -> tuple[Data, Data]:
    """Return sequences to learn from and, every tenth one, to test with: the same on every rank."""
    texts = [path.read_text(errors="replace") for path in files] if files else topics.values()
    words = [word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())]
    sequences = np.array(words[: len(words) // LENGTH * LENGTH]).reshape(-1, LENGTH)
    is_test = np.arange(len(sequences)) % 10 == 9
    known = [word for word, _ in Counter(sequences[~is_test].ravel().tolist()).most_common(size - 2)]
    number = {word: place for place, word in enumerate(known, start=2)}
    tokens = np.vectorize(lambda word: number.get(word, UNKNOWN), otypes=[np.int32])(sequences)
    return masked(tokens[~is_test], size), masked(tokens[is_test], size)


def masked(tokens: np.ndarray, size: int) -> Data:
    """Return inputs of the model and the words to find. As in BERT, a tenth of them is left, a tenth replaced."""
    random = np.random.default_rng(SEED)
    positions = np.sort(random.permuted(np.tile(np.arange(LENGTH), (len(tokens), 1)), axis=1)[:, :MASKED])
    words = np.take_along_axis(tokens, positions, axis=1)
    what, others = random.random(words.shape), random.integers(2, size, words.shape)
    given = np.select([what < 0.8, what < 0.9], [MASK, others], words)
    tokens = tokens.copy()
    np.put_along_axis(tokens, positions, given.astype(tokens.dtype), axis=1)
    inputs = {
        "token_ids": tokens,
        "segment_ids": np.zeros_like(tokens),
        "padding_mask": np.ones_like(tokens),
        "mask_positions": positions.astype(np.int32),
    }
    return inputs, words


# The model ------------------------------------------------------------------------------------------------------------


def bert(args: argparse.Namespace) -> keras.Model:
    encoder = keras_hub.models.BertBackbone(
        vocabulary_size=args.words,
        num_layers=args.layers,
        num_heads=max(1, args.width // 32),
        hidden_dim=args.width,
        intermediate_dim=4 * args.width,
        max_sequence_length=LENGTH,
        dropout=0.0 if args.check else 0.1,
    )
    positions = keras.Input((MASKED,), dtype="int32", name="mask_positions")
    head = keras_hub.layers.MaskedLMHead(token_embedding=encoder.token_embedding, intermediate_activation="gelu")
    return keras.Model(
        {**encoder.input, "mask_positions": positions}, head(encoder.output["sequence_output"], positions)
    )


@keras.saving.register_keras_serializable("keras_mlm")
class WarmedUpDecay(keras.optimizers.schedules.PolynomialDecay):
    """A linear decay to zero, after a rise in the first twentieth of the steps, without which BERT learns nothing."""

    def __call__(self, step: Any) -> Any:
        risen = (keras.ops.cast(step, "float32") + 1.0) / (self.decay_steps / 20)
        return super().__call__(step) * keras.ops.minimum(risen, 1.0)


def adam(rate: float, steps: int) -> keras.optimizers.Optimizer:
    return keras.optimizers.AdamW(WarmedUpDecay(rate, steps, 0.0), weight_decay=0.01, global_clipnorm=1.0)


def prepare(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])


# The checks -----------------------------------------------------------------------------------------------------------


class Curve(keras.callbacks.Callback):
    """The loss of each of the first steps; Keras shows the average since the epoch began."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._total = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if len(self.losses) < CHECKED:
            before, self._total = self._total, float(logs["loss"]) * (batch + 1)
            self.losses.append(self._total - before)


def losses_alone(args: argparse.Namespace, start: list[np.ndarray], data: Data, steps: int) -> list[float]:
    """Repeat the training in this process alone, on the combined batches of all ranks; return the losses."""
    inputs, words = data
    batch = args.batch_size * distrun.size()
    plan = Plan(Division(0, 1, batch, shuffle=True, seed=SEED, drop_remainder=True), len(words))
    order = np.concatenate([plan.indices(epoch) for epoch in range(args.epochs)])[: CHECKED * batch]
    model = bert(args)
    model.set_weights(start)
    prepare(model, adam(args.lr * distrun.size(), steps))
    curve = Curve()
    part = {name: values[order] for name, values in inputs.items()}
    model.fit(part, words[order], batch, shuffle=False, callbacks=[curve], verbose=0)
    return curve.losses


def follows(together: np.ndarray, alone: list[float]) -> bool:
    largest = np.abs(together - alone).max()
    print(f"in {len(alone)} steps from loss {alone[0]:.3f} to {alone[-1]:.3f}; largest difference {largest:.1e}")
    return bool(largest < 1e-4)


def digest(model: keras.Model) -> str:
    return hashlib.sha256(
        b"".join(np.ascontiguousarray(values).tobytes() for values in model.get_weights())
    ).hexdigest()


def check(what: str, is_so: bool) -> None:
    everywhere = all(distrun.allgather_object(is_so))
    if distrun.rank() == 0:
        print(f"check: {what} ... {'ok' if everywhere else 'FAILED'}", flush=True)
    if not everywhere:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
