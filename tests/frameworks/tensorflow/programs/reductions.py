"""Gradients that stay on their rank, are combined by Adasum or summed over several passes first, or travel in a form of
the user's."""

import numpy as np
import tensorflow as tf
from checking import Network, batches, check, close, in_every_way, mine, same_on_all_ranks
from expecting import raises

import distrun.tensorflow as hvd
from distrun.errors import MismatchError

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
MEAN = (SIZE + 1) / 2  # of what is 1 on the first rank, 2 on the next one


@in_every_way
def gradients_of_local_sources_stay_on_their_rank(way):
    shared, own = tf.Variable([1.0, 2.0]), tf.Variable(tf.ones(2 + RANK))  # of another shape on each rank
    table = tf.Variable(tf.ones((3, 2)))

    @way
    def gradients(wrap):
        with tf.GradientTape(persistent=True) as tape:
            loss = (RANK + 1.0) * (tf.reduce_sum(shared) + tf.reduce_sum(own) + tf.reduce_sum(tf.gather(table, [1])))
        tape = wrap(tape)
        tape.register_local_source(own)
        tape.register_local_source(table)
        found = tape.gradient(loss, [own, shared, table])
        local, others = tape.get_local_and_global_gradients(loss, [own, shared, table])
        assert [source is variable for (source, _), variable in zip(local, (own, table), strict=True)] == [True, True]
        assert others[0][0] is shared
        return [tf.convert_to_tensor(gradient) for gradient in [*found, others[0][1]]]

    def unscaled(tape):
        return hvd.DistributedGradientTape(tape, scale_local_gradients=False)

    for wrap, expected in ((hvd.DistributedGradientTape, (RANK + 1) / SIZE), (unscaled, RANK + 1)):
        first, second, third, unreduced = gradients(wrap)
        assert unreduced.numpy().tolist() == [RANK + 1] * 2
        assert first.numpy().tolist() == [expected] * (2 + RANK)
        assert second.numpy().tolist() == [MEAN, MEAN]
        assert third.numpy().tolist() == [[0, 0], [expected, expected], [0, 0]]


@in_every_way
def layers_may_stay_local_and_be_built_later(way):
    first, last = tf.keras.layers.Dense(3), tf.keras.layers.Dense(1 + RANK)

    @way
    def gradients():
        with tf.GradientTape() as tape:
            tape = hvd.PartialDistributedGradientTape(tape, local_layers=last)
            loss = tf.reduce_sum(last(first(tf.ones((2, 4)))))
        weights = first.trainable_weights + last.trainable_weights
        return tape.gradient(loss, weights)

    kernel, bias, own, offset = gradients()
    assert same_on_all_ranks([kernel, bias])
    assert own.shape == (3, 1 + RANK)
    assert offset.numpy().tolist() == [2 / SIZE] * (1 + RANK)
    with raises(ValueError, "int is none"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[3])


@in_every_way
def variables_may_have_other_names_on_each_rank(way):
    variable = tf.Variable([1.0], name=f"of_rank_{chr(97 + RANK)}")

    @way
    def gradient(use_generic_names):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable) * (RANK + 1.0)
        return hvd.DistributedGradientTape(tape).gradient(loss, variable, use_generic_names=use_generic_names)

    assert gradient(True).numpy().tolist() == [MEAN]
    with raises(MismatchError, "of_rank_a [1] float32 on rank 0"):
        gradient(False)


@in_every_way
def gradients_are_combined_by_adasum_each_by_itself(way):
    variables = [tf.Variable(tf.zeros(shape, tf.float64)) for shape in ((3,), (2, 2))]

    def gradient_of(rank, place):
        return np.random.default_rng([rank, place]).normal(size=variables[place].shape)

    @way
    def gradients():
        with tf.GradientTape() as tape:
            parts = [tf.reduce_sum(each * gradient_of(RANK, place)) for place, each in enumerate(variables)]
            loss = tf.add_n(parts)
        return hvd.DistributedGradientTape(tape, op=hvd.Adasum).gradient(loss, variables)

    for place, found in enumerate(gradients()):
        a, b = (gradient_of(rank, place) for rank in range(2))
        product = (a * b).sum() / 2
        assert np.allclose(found, (1 - product / (a * a).sum()) * a + (1 - product / (b * b).sum()) * b)


class Tenfold:
    """A compressor of the user's."""

    calls = 0

    def compress(self, tensor):
        self.calls += 1
        return tf.cast(tensor * 10, tf.float16), tensor.dtype

    def decompress(self, tensor, ctx):
        assert tensor.dtype == tf.float16
        return tf.cast(tensor, ctx) / 10


@in_every_way
def a_compressor_of_the_users_is_called(way):
    variable, table, tenfold = tf.Variable([1.0, 2.0]), tf.Variable(tf.ones((3, 2))), Tenfold()

    @way
    def gradients():
        with tf.GradientTape() as tape:
            loss = (RANK + 1.0) * (tf.reduce_sum(variable) + tf.reduce_sum(tf.gather(table, [RANK])))
        return hvd.DistributedGradientTape(tape, compression=tenfold).gradient(loss, [variable, table])

    dense, sparse = gradients()
    assert tenfold.calls == 1  # not of slices
    assert dense.dtype == tf.float32
    assert dense.numpy().tolist() == [MEAN, MEAN]
    assert np.allclose(tf.convert_to_tensor(sparse)[RANK], (RANK + 1) / SIZE)


@check
def optimizers_of_tensorflow_1_sum_over_several_passes_in_graphs():
    data = batches(4)
    for is_average, rate in ((True, 0.1), (False, 0.05)):
        with tf.Graph().as_default():
            model = Network()
            shape = tf.float64, [None, 6]
            rows, targets = tf.compat.v1.placeholder(*shape), tf.compat.v1.placeholder(tf.float64, [None, 2])
            count = tf.compat.v1.train.get_or_create_global_step()
            optimizer = hvd.DistributedOptimizer(
                tf.compat.v1.train.MomentumOptimizer(rate, 0.9),
                backward_passes_per_step=2,
                average_aggregated_gradients=is_average,
            )
            pairs = optimizer.compute_gradients(model.loss((rows, targets)), model.variables)
            train = optimizer.apply_gradients([(gradient * 1.0, v) for gradient, v in pairs], global_step=count)
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                batch = dict(zip((rows, targets), mine(data[0]), strict=True))
                with raises(tf.errors.InvalidArgumentError, "run tf.compat.v1.local_variables_initializer() beside"):
                    session.run(train, batch)
                session.run(tf.compat.v1.local_variables_initializer())
                before = session.run(model.variables)
                for number, batch in enumerate(data):
                    session.run(train, dict(zip((rows, targets), mine(batch), strict=True)))
                    assert close(session.run(model.variables), before) is (number == 0)
                assert session.run(count) == 4
                together = session.run(model.variables)
        assert close(together, with_momentum(data[:2], data[2:]), 1e-6)
        assert same_on_all_ranks(together)


@in_every_way
def optimizers_of_tensorflow_1_sum_over_several_passes(way):
    data, model, count = batches(4), Network(), tf.Variable(0, dtype=tf.int64)
    optimizer = hvd.DistributedOptimizer(
        tf.compat.v1.train.MomentumOptimizer(0.1, 0.9), backward_passes_per_step=2, average_aggregated_gradients=True
    )

    @way
    def step(rows, targets):
        optimizer.minimize(lambda: model.loss((rows, targets)), count, model.variables)

    for batch in data:
        step(*map(tf.constant, mine(batch)))
    assert int(count) == 4
    assert close(model.variables, with_momentum(data[:2], data[2:]), 1e-6)
    with raises(ValueError, "compute_gradients, which has not been called"):
        hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer(), backward_passes_per_step=2).apply_gradients([])


def with_momentum(*steps):
    """One process on batches put together."""
    model = Network()
    speeds = [tf.zeros_like(variable) for variable in model.variables]
    for several in steps:
        batch = [np.concatenate(arrays) for arrays in zip(*several, strict=True)]
        with tf.GradientTape() as tape:
            loss = model.loss(batch)
        gradients = tape.gradient(loss, model.variables)
        speeds = [0.9 * speed + gradient for speed, gradient in zip(speeds, gradients, strict=True)]
        for variable, speed in zip(model.variables, speeds, strict=True):
            variable.assign_sub(0.1 * speed)
    return model.variables


@check
def variables_of_an_optimizer_of_tensorflow_1_may_be_local():
    shared, own = tf.Variable([1.0]), tf.Variable(tf.ones(1 + RANK))
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
    optimizer.register_local_var(own)
    optimizer.minimize(lambda: (RANK + 1.0) * (tf.reduce_sum(shared) + tf.reduce_sum(own)), var_list=[shared, own])
    assert shared.numpy().tolist() == [1 - MEAN]
    assert own.numpy().tolist() == [1 - (RANK + 1) / SIZE] * (1 + RANK)


@check
def groups_that_are_none_are_refused():
    for options in ({"groups": "two"}, {"groups": -1}, {"num_groups": 1.5}):
        with raises(ValueError, "does not say which gradients travel together"):
            hvd.DistributedGradientTape(tf.GradientTape(), **options)
    hvd.DistributedGradientTape(tf.GradientTape(), num_groups=2)
    hvd.DistributedGradientTape(tf.GradientTape(), groups=[[tf.Variable(1.0)]])
