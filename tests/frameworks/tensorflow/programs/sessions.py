"""Graphs of TensorFlow 1 and their sessions, where nothing orders collectives: whatever is fetched, ranks do not wait
for ever."""

import numpy as np
import tensorflow as tf
from checking import check, run_checks
from expecting import raises

import distrun.tensorflow as hvd
from distrun.errors import NotOfferedError

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
MANY = 20  # far more than a session has threads
v1 = tf.compat.v1


def in_session(build, *, threads=0, times=1, feeds=None):
    """Run the graph that `build` makes, in a session with so many threads for operations (0: as many as it likes)."""
    config = v1.ConfigProto(inter_op_parallelism_threads=threads)
    with tf.Graph().as_default():
        fetches = build()
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            for _ in range(times):
                results = session.run(fetches, feeds)
    return results


def each_kind(tensor):
    """Every kind of collective, on a float32 [SIZE, n] tensor."""
    return [
        hvd.allreduce(tensor),
        hvd.allgather(tensor),
        hvd.broadcast(tensor, SIZE - 1),
        hvd.alltoall(tensor),
        hvd.reducescatter(tensor),
    ]


def array(n, rank=RANK):
    return np.float32(rank + 1) * np.arange(SIZE * n, dtype=np.float32).reshape(SIZE, n)


def expected_of_each_kind(n):
    everybody = [array(n, rank) for rank in range(SIZE)]
    mean = sum(everybody) / SIZE
    sent = np.stack([each[RANK] for each in everybody])
    return [mean, np.concatenate(everybody), everybody[-1], sent, mean[RANK : RANK + 1]]


def independent():
    return [each_kind(tf.identity(array(n))) for n in range(1, MANY // 5 + 2)]


def are_as_expected(results):
    for n, found in enumerate(results, start=1):
        for one, other in zip(found, expected_of_each_kind(n), strict=True):
            np.testing.assert_array_equal(one, other)


@check
def many_independent_collectives_need_no_thread_each():
    for threads in (1, 2):
        are_as_expected(in_session(independent, threads=threads, times=2))
    for kind in range(5):
        results = in_session(lambda kind=kind: [each_kind(tf.identity(array(2)))[kind] for _ in range(MANY)], threads=1)
        assert all(np.array_equal(each, expected_of_each_kind(2)[kind]) for each in results)


@check
def a_function_in_a_graph_needs_none_either():
    def functions():
        results = []
        for n in range(1, 9):

            def function(tensor):
                return each_kind(tensor)

            function.__name__ = f"function_{n}"
            results.append(tf.function(function)(tf.identity(array(n))))
        return results

    are_as_expected(in_session(functions, threads=1))


@check
def large_tensors_hold_no_thread():
    results = in_session(lambda: [hvd.allreduce(tf.ones(700_000) * RANK, op=hvd.Sum) for _ in range(5)], threads=2)
    assert all(np.array_equal(each, np.full(700_000, sum(range(SIZE)), np.float32)) for each in results)


@check
def ranks_may_start_them_in_opposite_orders():
    def chained():
        tensors = []
        for place in range(10) if RANK % 2 else reversed(range(10)):
            with tf.control_dependencies(tensors[-1:]):
                tensors.append(tf.fill([2], float(place)))
        return [
            hvd.allreduce(tensor, name=f"place {int(place)}") for tensor, place in zip(tensors, places(), strict=True)
        ]

    def places():
        return range(10) if RANK % 2 else reversed(range(10))

    results = in_session(chained, threads=1)
    assert [each[0] for each in results] == [float(place) for place in places()]


@check
def training_and_metrics_may_be_fetched_together():
    def build():
        v1.set_random_seed(RANK)
        rows = tf.random.normal([32, 10])
        weights = v1.get_variable("weights", [10, 1], initializer=v1.ones_initializer())
        loss = tf.reduce_mean((rows @ weights - 1.0) ** 2)
        train = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.01)).minimize(loss)
        return [train, weights, *[hvd.allreduce(tf.reduce_mean(rows ** (power + 1))) for power in range(8)]]

    _, weights, *metrics = in_session(build, threads=2, times=5)
    same = hvd.allgather_object([weights.tobytes(), *map(float, metrics)], name="same")
    assert all(each == same[0] for each in same)


def gradient(function, shape=(SIZE, 3), weight=RANK + 1.0):
    """The gradient of a function's result times a rank's weight, in a session that fetches nothing else."""

    def build():
        tensor = tf.ones(shape)
        return tf.gradients(function(tensor) * weight, tensor)[0]

    return in_session(build, threads=1)


@check
def gradients_of_all_kinds_are_computed_where_only_they_are_fetched():
    average = (SIZE + 1) / 2
    ones, ranks = np.ones((SIZE, 3), np.float32), np.arange(1, SIZE + 1, dtype=np.float32)[:, None]
    expected = [average * ones, average * ones, (average if RANK == 1 else 0) * ones, ranks * ones, ranks * ones / SIZE]
    for kind, wanted in enumerate(expected):
        np.testing.assert_array_equal(gradient(lambda tensor, kind=kind: each_kind(tensor)[kind]), wanted)
    by_splits = gradient(lambda tensor: hvd.alltoall(tensor, [1] * SIZE)[0])
    np.testing.assert_array_equal(by_splits, ranks * ones)


@check
def gradients_of_one_groups_results_may_be_taken_one_by_one():
    groups = [hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter]
    for group in groups:

        def build(group=group):
            tensors = [tf.ones([SIZE, 3]) * place for place in range(4)]
            results = group(tensors)
            return [tf.gradients(result, tensor)[0] for result, tensor in zip(results, tensors, strict=True)]

        found = in_session(build, threads=2, times=3)
        wanted = 1 / SIZE if group is hvd.grouped_reducescatter else 1
        assert all(np.array_equal(each, np.full((SIZE, 3), wanted, np.float32)) for each in found)


@check
def a_collectives_gradient_may_be_taken_twice():
    def build():
        tensor = tf.ones([SIZE, 2])
        results = each_kind(tensor)
        return [tf.gradients(result * factor, tensor)[0] for factor in (1.0, 2.0) for result in results]

    found = in_session(build, threads=1)
    assert all(np.array_equal(2 * one, other) for one, other in zip(found[:5], found[5:], strict=True))


@check
def variables_are_overwritten_when_the_result_is_computed():
    for use_resource in (True, False):
        with tf.Graph().as_default(), v1.Session() as session:
            variables = [
                v1.get_variable(name, initializer=np.full(3, value + RANK, dtype), use_resource=use_resource)
                for name, value, dtype in (("a", 1, np.float32), ("b", 5, np.int64))
            ]
            session.run(v1.global_variables_initializer())
            received = hvd.broadcast_(variables, SIZE - 1)
            assert [int(each[0]) for each in session.run(variables)] == [1 + RANK, 5 + RANK]
            assert [int(each[0]) for each in session.run(received)] == [SIZE, SIZE + 4]
            assert [int(each[0]) for each in session.run(variables)] == [SIZE, SIZE + 4]


@check
def variables_of_a_function_are_overwritten_and_returned():
    variable = tf.Variable(tf.ones(3) * RANK)

    @tf.function
    def received():
        (tensor,) = hvd.broadcast_([variable], SIZE - 1)
        return tensor

    assert received().numpy().tolist() == [SIZE - 1.0] * 3
    assert variable.numpy().tolist() == [SIZE - 1.0] * 3
    variable.assign(tf.ones(3) * RANK)
    (tensor,) = hvd.broadcast_([variable], 0)
    assert tensor.numpy().tolist() == variable.numpy().tolist() == [0.0] * 3


@check
def errors_are_those_that_scripts_of_tensorflow_1_expect():
    with raises(tf.errors.FailedPreconditionError, "MismatchError: allreduce 'uneven'", "sessions.py:"):
        in_session(lambda: hvd.allreduce(tf.ones(3 + RANK), name="uneven"))
    with raises(tf.errors.InvalidArgumentError, "UsageError: splits=", "sum to"):
        in_session(lambda: hvd.alltoall(tf.ones(3), [5] * SIZE))
    with tf.Graph().as_default(), raises(NotImplementedError, "op=max of tf.IndexedSlices"):
        hvd.allreduce(tf.IndexedSlices(tf.ones((1, 2)), [0]), op=hvd.Max)
    for kind in (RuntimeError, NotOfferedError, ValueError):
        with raises(kind, "broadcast_variables(model.variables"):
            hvd.broadcast_global_variables(0)
    are_as_expected(in_session(independent))  # the job goes on


run_checks()
