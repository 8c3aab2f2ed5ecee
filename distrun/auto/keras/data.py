"""The rows of this rank, cut out of every batch that Keras takes from the script's data of any kind.

All ranks iterate over all of the data in the same order, because their random generators had the same seed. They
compare what they have seen: a digest of elements of each batch, which is updated as batches are taken.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from keras import tree
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from distrun.auto.keras.steps import Part, part_of
from distrun.auto.refusing import refuse

DATA, PART, SEEN = "distrun_data", "distrun_part", "distrun_seen"
"""The keys of a batch in TensorFlow, which is a dictionary with the data, its part and its digest."""
_SAMPLES = 64  # elements of each array that go into a digest

_ROWS = ("model.fit(dataset.batch(32))  # batches, whose first dimension counts the samples",)


class BatchRecord:
    """The parts of the batches that the data has yielded, and a digest of the batches."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.rows: int | None = None
        """The number of rows of a whole batch, or None if it is not known beforehand."""
        self.digest = 0
        self._parts: list[tuple[Part, int]] = []
        self._last = Part(0, size, size)

    @property
    def last(self) -> Part:
        """The part of the last step. Before the first one, a part as if every rank had all rows."""
        in_graph = Part(*last_in_graph().numpy().tolist()) if "tensorflow" in sys.modules else self._last
        return in_graph if in_graph.total else self._last

    def begin(self) -> None:
        """Forget batches that were not taken, as another iteration begins."""
        self._parts.clear()

    def note(self, part: Part, digest: int) -> None:
        """Add the part of a batch, and the batch's digest."""
        self._parts.append((part, digest))

    def take(self) -> Part:
        """Return the part of the next batch, and add the batch to the digest."""
        self._last, digest = self._parts.pop(0)
        self.digest = zlib.crc32(digest.to_bytes(8, "little"), self.digest)
        return self._last

    def seen(self) -> int:
        """Return the digest of the batches that were taken."""
        in_graph = int(digest_in_graph().numpy()) if "tensorflow" in sys.modules else 0
        return (self.digest + in_graph) % 2**62


class Cut(DataAdapter):
    """An adapter that cuts another adapter's batches."""

    def __init__(self, whole: Any, record: BatchRecord, batches: int = 1) -> None:
        """`batches` is the number of the other adapter's batches that are joined to one batch of all ranks."""
        self._whole = whole
        self._record = record
        self._batches = batches
        if whole.batch_size:
            record.rows = int(whole.batch_size) * batches

    def get_numpy_iterator(self) -> Any:
        return self._iterate(self._whole.get_numpy_iterator)

    def get_jax_iterator(self) -> Any:
        return self._iterate(self._whole.get_jax_iterator)

    def get_torch_dataloader(self) -> Any:
        return _Reiterable(lambda: self._iterate(self._whole.get_torch_dataloader))

    def get_tf_dataset(self) -> Any:
        with _own_shuffles(self._whole):
            dataset = self._whole.get_tf_dataset()
        return cut_dataset(dataset, self._record, self._batches)

    def on_epoch_begin(self) -> None:
        self._whole.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._whole.on_epoch_end()

    @property
    def num_batches(self) -> int | None:
        number = self._whole.num_batches
        return None if number is None else -(-number // self._batches)

    @property
    def batch_size(self) -> int | None:
        return self._whole.batch_size

    @property
    def has_partial_batch(self) -> Any:
        return self._whole.has_partial_batch

    @property
    def partial_batch_size(self) -> Any:
        return self._whole.partial_batch_size

    def _iterate(self, source: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        # Not inside the generator, which starts later: random numbers may be drawn when the iterator is created.
        return self._cut_all(iter(source()))

    def _cut_all(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._record.begin()
        for batch in _joined(batches, self._batches):
            yield self.cut(batch)

    def cut(self, batch: Any) -> Any:
        """Return this rank's rows of a batch, and add them to the record."""
        part = part_of(rows_of(batch), self._record.rank, self._record.size)
        self._record.note(part, digest_of(batch))
        return cut(batch, part)


def cut(batch: Any, part: Part) -> Any:
    """Return a batch with the rows of a part of each of its arrays."""
    if part.rows == part.total:
        return batch
    return tree.map_structure(lambda leaf: leaf if leaf is None else leaf[part.start : part.stop], batch)


class _Reiterable:
    """An iterable that calls `begin` for a new iterator each time."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


def _leaves(batch: Any) -> list[Any]:
    return [leaf for leaf in tree.flatten(batch) if leaf is not None]


def rows_of(batch: Any) -> int:
    """Return the number of samples in a batch.

    Raises:
        Refusal: its arrays do not have a common number of rows.
    """
    shapes = [tuple(np.shape(leaf)) if not hasattr(leaf, "shape") else tuple(leaf.shape) for leaf in _leaves(batch)]
    if not shapes or any(not shape or shape[0] != shapes[0][0] for shape in shapes):
        refuse(f"the arrays of a batch do not have one number of rows: their shapes are {shapes}", _ROWS)
    if any("sparse" in type(leaf).__module__.lower() for leaf in _leaves(batch)):
        refuse("the data is sparse, and rows of sparse tensors are not cut", _ROWS)
    return int(shapes[0][0])


def digest_of(batch: Any) -> int:
    """Return a checksum of elements at equal distances in each array of a batch."""
    result = 0
    for leaf in _leaves(batch):
        flat = leaf.reshape(-1)
        sample = flat[:: max(1, flat.shape[0] // _SAMPLES)]
        if hasattr(sample, "detach"):  # torch
            sample = sample.detach().cpu().float().numpy()
        sample = np.ascontiguousarray(sample)
        text = sample.tobytes() if sample.dtype != object else repr(sample.tolist()).encode()
        result = zlib.crc32(text, result)
    return result


def _joined(batches: Iterable[Any], count: int) -> Iterator[Any]:
    if count == 1:
        yield from batches
        return
    rest = iter(batches)
    while group := list(itertools.islice(rest, count)):
        yield tree.map_structure(lambda *leaves: _concatenate(leaves), *group)


def _concatenate(leaves: Sequence[Any]) -> Any:
    if type(leaves[0]).__module__.startswith("torch"):
        import torch

        return torch.cat(list(leaves))
    return np.concatenate([np.asarray(leaf) for leaf in leaves])


# TensorFlow -----------------------------------------------------------------------------------------------------------


def cut_dataset(dataset: Any, record: BatchRecord, batches: int) -> Any:
    """Return a dataset of dictionaries: this rank's rows of each batch of a `tf.data.Dataset`, its part, a digest."""
    import tensorflow as tf

    if batches > 1:
        first = next(iter(tf.nest.flatten(dataset.element_spec))).shape[0]
        if first is None:
            first = rows_of(next(iter(dataset.take(1).as_numpy_iterator())))
        dataset = dataset.rebatch(first * batches)
    is_tuple = isinstance(dataset.element_spec, tuple)
    specs = tf.nest.flatten(dataset.element_spec)
    known = {spec.shape[0] for spec in specs if getattr(spec, "shape", None) and spec.shape.rank}
    rows = known.pop() if len(known) == 1 else None  # a dimension that is static stays static

    def divide(*elements: Any) -> Any:
        element = elements if is_tuple else elements[0]
        leaves = [leaf for leaf in tf.nest.flatten(element) if not isinstance(leaf, tf.experimental.Optional)]
        if not leaves or any(isinstance(leaf, tf.sparse.SparseTensor) or leaf.shape.rank == 0 for leaf in leaves):
            refuse("the dataset is sparse, or not batched: there are no rows to divide", _ROWS)
        total = rows
        if total is None:
            counts = [tf.cast(tf.shape(leaf)[0] if tf.is_tensor(leaf) else leaf.nrows(), tf.int32) for leaf in leaves]
            with tf.control_dependencies([tf.debugging.assert_equal(count, counts[0]) for count in counts[1:]]):
                total = tf.identity(counts[0])
        part = _part_in_graph(total, record.rank, record.size)
        mine = tf.nest.map_structure(
            lambda leaf: leaf if isinstance(leaf, tf.experimental.Optional) else leaf[part.start : part.stop], element
        )
        return {DATA: mine, PART: tuple(map(tf.convert_to_tensor, part)), SEEN: _digest_in_graph(leaves)}

    return dataset.map(divide, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(tf.data.AUTOTUNE)


@functools.cache
def digest_in_graph() -> Any:
    """Return the TensorFlow variable with the digest of all batches that were taken in its graphs.

    There is only one, because the steps that assign to it are traced once and used in each `fit` of the model.
    """
    import tensorflow as tf

    with tf.init_scope(), tf.device("CPU:0"):
        return tf.Variable(0, dtype=tf.int64, trainable=False)


@functools.cache
def last_in_graph() -> Any:
    """Return the TensorFlow variable with the part of the last step, unknown to Python, or zeros before the first."""
    import tensorflow as tf

    with tf.init_scope(), tf.device("CPU:0"):
        return tf.Variable([0, 0, 0], dtype=tf.int64, trainable=False)


def _part_in_graph(total: Any, rank: int, size: int) -> Part:
    if isinstance(total, int):
        return part_of(total, rank, size)
    import tensorflow as tf

    is_small = total < size
    start = tf.where(is_small, 0, total * rank // size)
    return Part(start, tf.where(is_small, total, total * (rank + 1) // size), total)


def _digest_in_graph(leaves: Sequence[Any]) -> Any:
    import tensorflow as tf

    digests = []
    for leaf in leaves:
        flat = tf.reshape(leaf if tf.is_tensor(leaf) and not hasattr(leaf, "flat_values") else leaf.flat_values, [-1])
        sample = flat[:: tf.maximum(1, tf.size(flat) // _SAMPLES)]
        digests.append(tf.strings.to_hash_bucket_fast(tf.io.serialize_tensor(sample), 2**31))
    return tf.add_n(digests)


@contextlib.contextmanager
def _own_shuffles(adapter: Any) -> Iterator[None]:
    """A context in which Keras shuffles arrays by numpy, if the script has not seeded TensorFlow.

    `seed_all` has seeded TensorFlow, so that all ranks have the same order. But the shuffle of a seeded TensorFlow in
    this adapter gives the same order in every epoch.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    if not isinstance(adapter, ArrayDataAdapter) or context.global_seed() != given_seed:
        yield
        return
    plain, orders = tf.random.shuffle, np.random.default_rng(np.random.randint(2**31))

    def shuffle(indices: Any, *args: Any, **options: Any) -> Any:
        order = tf.numpy_function(lambda given: orders.permutation(given), [indices], indices.dtype)
        return tf.ensure_shape(order, indices.shape)

    tf.random.shuffle = shuffle
    try:
        yield
    finally:
        tf.random.shuffle = plain


given_seed: int | None = None
"""The seed that TensorFlow got from this module, not from the script."""


def seed_all(seed: int) -> None:
    """Seed all random generators: Python's, numpy's, Keras's and its backend's."""
    import keras

    global given_seed
    keras.utils.set_random_seed(seed)
    given_seed = seed if "tensorflow" in sys.modules else None
