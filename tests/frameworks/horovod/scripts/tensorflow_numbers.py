"""Collectives and gradients of TensorFlow in numbers: each case by the ranks, and by Horovod's formula."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovods_formulas import adasum

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
OPS = {
    hvd.Sum: lambda arrays: arrays.sum(0),
    hvd.Average: lambda arrays: arrays.sum(0) / len(arrays),
    hvd.Min: lambda arrays: arrays.min(0),
    hvd.Max: lambda arrays: arrays.max(0),
    hvd.Product: lambda arrays: arrays.prod(0),
}


def theirs(rank, dtype=tf.float64, shape=(6,)):
    return (np.arange(np.prod(shape)).reshape(shape) % 4 + rank + 1).astype(dtype.as_numpy_dtype)


def reduced(op, dtype, arrays, prescale=1.0, postscale=1.0):
    """The result by Horovod's formula: postscale * op(prescale * array of each rank)."""
    return (OPS[op](np.stack(arrays).astype("d") * prescale) * postscale).astype(dtype.as_numpy_dtype)


def same(found, expected):
    found = tf.convert_to_tensor(found).numpy()
    return found.dtype == expected.dtype and np.allclose(found, expected, 1e-6, 0)


# Of what is divided unevenly the first ranks get one more; its gradient is Sum's times the ranks.
for length in (SIZE, 2 * SIZE + 1, 3 * SIZE - 1):
    starts = [length // SIZE * rank + min(rank, length % SIZE) for rank in range(SIZE + 1)]
    arrays = [theirs(rank, shape=(length, 2)) for rank in range(SIZE)]
    for op, times in ((hvd.Sum, SIZE), (hvd.Average, 1)):
        given = tf.constant(arrays[RANK])
        with tf.GradientTape() as tape:
            tape.watch(given)
            part = hvd.reducescatter(given, op=op)
            loss = tf.reduce_sum(part) * (RANK + 1.0)
        assert same(part, reduced(op, tf.float64, arrays)[starts[RANK] : starts[RANK + 1]]), (length, op)
        rows = [rank + 1.0 for rank in range(SIZE) for _ in range(starts[rank], starts[rank + 1])]
        assert same(tape.gradient(loss, given), np.repeat(rows, 2).reshape(length, 2) * times), (length, op)
if SIZE & (SIZE - 1) == 0:
    for length in (1.0, 1e-6):
        arrays = [np.random.default_rng(rank).normal(size=(2, 3)) * length for rank in range(SIZE)]
        assert np.allclose(hvd.allreduce(tf.constant(arrays[RANK]), op=hvd.Adasum) / length, adasum(arrays) / length)


# Slices: all ranks' in a row; of Average the values are divided by the ranks.
def slices(rank):
    return tf.IndexedSlices(tf.ones((3, 2)) * (rank + 1.0), tf.constant([0, rank + 1, 0]), tf.constant([SIZE + 2, 2]))


whole = [tf.convert_to_tensor(slices(rank)).numpy() for rank in range(SIZE)]
for op in (hvd.Sum, hvd.Average):
    found = hvd.allreduce(slices(RANK), op=op)
    assert found.values.shape[0] == 3 * SIZE
    assert same(found, reduced(op, tf.float32, whole)), op
    for factors in ((0.5, 1.0), (1.0, 0.25)):
        found = hvd.allreduce(slices(RANK), op=op, prescale_factor=factors[0], postscale_factor=factors[1])
        assert same(found, reduced(op, tf.float32, whole, *factors)), (op, factors)

# Gradients, dense and sparse, by a tape and by an optimizer of TensorFlow 1.
for op in (hvd.Average, hvd.Sum):
    for is_dense in (False, True):
        for factor in (1.0, 4.0) if op == hvd.Average else (1.0,):
            options = {"op": op, "sparse_as_dense": is_dense, "gradient_predivide_factor": factor}
            table, bias = tf.Variable(tf.ones((SIZE + 2, 2))), tf.Variable(tf.ones(2))

            def loss(table=table, bias=bias):
                rows = tf.gather(table, [0, RANK + 1, 0])
                return (RANK + 1.0) * (tf.reduce_sum(rows) + tf.reduce_sum(bias))

            with tf.GradientTape() as tape:
                value = loss()
            of_table, of_bias = hvd.DistributedGradientTape(tape, **options).gradient(value, [table, bias])
            assert isinstance(of_table, tf.IndexedSlices) is not is_dense
            sums = reduced(op, tf.float32, whole)
            biases = reduced(op, tf.float32, [np.full(2, rank + 1.0, "f") for rank in range(SIZE)])
            assert same(of_table, sums), options
            assert same(of_bias, biases), options
            plain = tf.compat.v1.train.GradientDescentOptimizer(0.5)
            hvd.DistributedOptimizer(plain, **options).minimize(loss, var_list=[table, bias])
            assert same(table, 1 - sums * np.float32(0.5)), options
            assert same(bias, 1 - biases * np.float32(0.5)), options

print("all as computed")
