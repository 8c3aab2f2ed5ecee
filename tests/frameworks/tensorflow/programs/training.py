"""DistributedGradientTape, DistributedOptimizer and the same initial state: all ranks together equal one process."""

from functools import partial

import numpy as np
import tensorflow as tf
from checking import Network, batches, check, close, in_every_way, mine, run_checks, same_on_all_ranks
from expecting import raises

import distrun.tensorflow as hvd
from distrun.errors import JobAbortedError, MismatchError

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()


def trained_alone(model, data, rate=0.1):
    for batch in data:
        with tf.GradientTape() as tape:
            loss = model.loss(batch)
        for variable, gradient in zip(model.variables, tape.gradient(loss, model.variables), strict=True):
            variable.assign_sub(rate * gradient)
    return model.variables


def trained_together(model, data, way, wrap=hvd.DistributedGradientTape, rate=0.1):
    @way
    def step(rows, targets):
        with tf.GradientTape() as tape:
            loss = model.loss((rows, targets))
        tape = wrap(tape)
        for variable, gradient in zip(model.variables, tape.gradient(loss, model.variables), strict=True):
            variable.assign_sub(rate * gradient)

    for batch in data:
        step(*map(tf.constant, mine(batch)))
    return model.variables


@in_every_way
def ranks_together_get_the_result_of_one_process(way):
    data = batches(5)
    model = Network(seed=3 + RANK)
    hvd.broadcast_variables(model.variables, root_rank=0)
    together = trained_together(model, data, way)
    assert close(together, trained_alone(Network(), data))
    assert same_on_all_ranks(together)


@check
def the_ways_of_averaging_agree():
    data = batches(3)
    alone = trained_alone(Network(), data)

    def trained(rate=0.1, **options):
        wrap = partial(hvd.DistributedGradientTape, **options)
        return trained_together(Network(), data, tf.function, wrap, rate)

    assert close(trained(gradient_predivide_factor=2.0), alone)
    assert close(trained(0.1 / SIZE, op=hvd.Sum), alone)
    for name in ("fp16", "int8", "int4"):  # are for between hosts
        assert close(trained(compression=getattr(hvd.Compression, name)), alone, 1e-2)
    with raises(ValueError, "gradient_predivide_factor=2.0", "op=sum"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0)
    with raises(ValueError, "gradient_predivide_factor=0.0 must be greater than 0"):
        hvd.DistributedGradientTape(tf.GradientTape(), gradient_predivide_factor=0.0)


@check
def what_powersgd_takes_is_known_and_comes_back():
    matrices = [tf.Variable(tf.random.stateless_normal(shape, (RANK, 2))) for shape in ((70, 90), (60, 40))]

    def gradients_by(compression):
        @tf.function
        def gradients():
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(each**2) / 2 for each in matrices])
            return hvd.DistributedGradientTape(tape, compression=compression).gradient(loss, matrices)

        return lambda: [each.numpy() for each in gradients()]

    exact, step = gradients_by(hvd.Compression.none)(), gradients_by(hvd.Compression.powersgd(2))
    feedback, totals = hvd.ErrorFeedback(), [0.0, 0.0]
    feedback.load_state_dict({})
    for count in range(1, 6):
        totals = [total + each for total, each in zip(totals, step(), strict=True)]
        with feedback.complete_state():
            saved = feedback.state_dict()
        (owed,) = saved.values()
        for place, loss in owed.items():
            assert abs(loss["lost"]).max() > 0.1
            limit = 0.02 * abs(loss["lost"]).max()
            assert abs(totals[place] + loss["lost"] - count * exact[place]).max() <= limit
        if count == 3:
            step()  # in vain
            feedback.load_state_dict(saved)
    with raises(ValueError, "PowerSGDCompressor(rank=2)", "for the gradients of an optimizer"):
        hvd.allreduce(matrices[0], compression=hvd.Compression.powersgd(2))


@in_every_way
def a_wrapped_tape_is_a_tape(way):
    first, second, unused = tf.Variable(float(RANK)), tf.Variable([1.0, 2.0]), tf.Variable(1.0)

    @way
    def gradients():
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
            assert isinstance(tape, tf.GradientTape)
            product = first * second
            with tape.stop_recording():
                first * unused
        sources = {"first": first, "others": [second, unused]}
        return (
            tape.gradient(product, sources),
            tape.gradient(product, second, output_gradients=tf.constant([1.0, 10.0])),
            tape.gradient(product, [unused, second], unconnected_gradients=tf.UnconnectedGradients.ZERO),
            tape.jacobian(product, second),
            len(tape.watched_variables()),
        )

    nested, weighted, (zero, _), jacobian, watched = gradients()
    mean = (SIZE - 1) / 2
    assert float(nested["first"]) == 3.0
    assert nested["others"][0].numpy().tolist() == [mean, mean]
    assert nested["others"][1] is None
    assert weighted.numpy().tolist() == [mean, 10 * mean]
    assert float(zero) == 0.0
    assert jacobian.numpy().tolist() == [[RANK, 0], [0, RANK]]  # a rank's own: only gradients are reduced
    assert watched == 2


@in_every_way
def gradients_of_embeddings_stay_sparse_unless_told(way):
    table = tf.Variable(tf.ones((5, 2)))

    @way
    def gradients(rows, sparse_as_dense):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows)) * (RANK + 1.0)
        return hvd.DistributedGradientTape(tape, sparse_as_dense=sparse_as_dense).gradient(loss, table)

    for sparse_as_dense in (False, True):
        gradient = gradients(tf.constant([RANK, 4]), sparse_as_dense)
        assert isinstance(gradient, tf.IndexedSlices) is not sparse_as_dense
        expected = np.zeros((5, 2), np.float32)
        for rank in range(SIZE):
            expected[[rank, 4]] += (rank + 1) / SIZE
        assert np.allclose(tf.convert_to_tensor(gradient), expected)


@check
def a_rank_may_have_a_smaller_last_batch():
    model, sizes = Network(), []

    @tf.function(reduce_retracing=False)
    def step(rows, targets):
        sizes.append(rows.shape[0])
        with tf.GradientTape() as tape:
            loss = model.loss((rows, targets))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.variables)
        for variable, gradient in zip(model.variables, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
        return hvd.allreduce(loss)

    for rows in (6, 6, 6 if RANK else 5, 6):
        loss = step(*(tf.constant(array[:rows]) for array in batches(1)[0]))
    assert sizes == ([6] if RANK else [6, 5])
    assert same_on_all_ranks([*model.variables, loss])


@check
def two_models_train_side_by_side():
    one, other = Network(), Network(widths=(6, 4, 2))
    data = batches(2)
    assert close(trained_together(one, data, tf.function), trained_alone(Network(), data))
    assert close(trained_together(other, data, tf.function), trained_alone(Network(widths=(6, 4, 2)), data))


@check
def ranks_with_different_models_are_told_where():
    model = Network(widths=(6, 5 + RANK, 2))
    for way in (lambda function: function, tf.function):
        with raises(
            MismatchError, "the variables that have gradients differ", "layer0/kernel [6, 5] float64 on rank 0"
        ):
            trained_together(model, batches(1), way)
    with raises(MismatchError, "the variables to broadcast differ", "layer0/kernel [6, 6] float64 on rank 1"):
        hvd.broadcast_variables(model.variables, 0)
    with raises(MismatchError, "missing on rank 1"):
        hvd.broadcast_variables([] if RANK else model.variables, 0)


@in_every_way
def gradients_of_different_variables_are_not_mixed_up(way):
    one, other = tf.Variable([1.0, 2.0], name="one"), tf.Variable([1.0, 2.0], name="other")

    @way
    def gradients(sources):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(other if RANK else one, [0]))
        return hvd.DistributedGradientTape(tape).gradient(loss, sources)

    with raises(MismatchError, "one [2] float32 in slices on rank 0", "one [2] float32 without gradient on rank 1"):
        gradients([one, other])
    with raises(MismatchError, "without gradient"):
        gradients([one])


@check
def names_that_count_layers_of_the_process_do_not_matter():
    if RANK == 0:
        tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(4), tf.keras.layers.Dense(2)])
    hvd.broadcast_variables(model.variables, root_rank=0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones((2, 3)) * RANK))
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    assert same_on_all_ranks([*model.variables, *gradients])


@in_every_way
def variables_start_as_the_roots(way):
    variables = [tf.Variable(tf.fill((3, 2), float(RANK))), tf.Variable(RANK), tf.Variable([RANK > 0])]
    variables += tf.keras.optimizers.Adam(0.1 * (RANK + 1)).variables

    @way
    def broadcast():
        hvd.broadcast_variables(variables, root_rank=SIZE - 1)

    broadcast()
    assert same_on_all_ranks(variables)
    assert variables[0].numpy().tolist() == [[SIZE - 1.0] * 2] * 3
    assert variables[1].numpy() == SIZE - 1
    with raises(ValueError, "EagerTensor is none"):
        hvd.broadcast_variables([tf.ones(1)], 0)


@check
def optimizers_of_tensorflow_1_reduce_in_graphs():
    data = batches(4)
    with tf.Graph().as_default():
        model = Network()
        rows, targets = tf.compat.v1.placeholder(tf.float64, [None, 6]), tf.compat.v1.placeholder(tf.float64, [None, 2])
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
        train = optimizer.minimize(model.loss((rows, targets)), var_list=model.variables)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for batch in data:
                session.run(train, dict(zip((rows, targets), mine(batch), strict=True)))
            together = session.run(model.variables)
    assert close(together, trained_alone(Network(), data), 1e-7)  # the learning rate is a float32
    assert same_on_all_ranks(together)


@check
def optimizers_of_like_networks_are_told_apart_in_a_graph():
    with tf.Graph().as_default():
        pace, weights, steps = tf.compat.v1.placeholder(tf.float32, []), [], []
        for number in range(2):
            with tf.compat.v1.variable_scope("net" if number == 0 else f"net_{number}"):
                weights.append(tf.compat.v1.get_variable("kernel", [4], initializer=tf.zeros_initializer()))
            optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
            loss = 10.0**number * pace * tf.reduce_sum(weights[-1])
            steps.append(optimizer.minimize(loss, var_list=weights[-1:]))
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for _ in range(5):
                session.run(steps if RANK else steps[::-1], {pace: RANK + 1.0})
            shown = session.run(weights)
    mean = sum(range(1, SIZE + 1)) / SIZE
    assert [each.tolist() for each in shown] == [[-5 * mean] * 4, [-50 * mean] * 4]


@check
def what_is_no_optimizer_or_tape_is_refused():
    plain = tf.compat.v1.train.AdamOptimizer()
    with raises(ValueError, "already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(plain))
    with raises(ValueError, "backward_passes_per_step=0"):
        hvd.DistributedOptimizer(plain, backward_passes_per_step=0)
    with raises(ValueError, "not builtins.str"):
        hvd.DistributedOptimizer("adam")
    with raises(ValueError, "already"):
        hvd.DistributedGradientTape(hvd.DistributedGradientTape(tf.GradientTape()))
    with raises(ValueError, "not int"):
        hvd.DistributedGradientTape(3)
    with raises(ValueError, "use broadcast_variables"):
        hvd.broadcast_global_variables(0)


@check
def optimizers_of_keras_reduce_too():
    data = batches(3)
    model = Network()
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))
    assert isinstance(optimizer, tf.keras.optimizers.SGD)

    @tf.function
    def step(rows, targets):
        with tf.GradientTape() as tape:
            loss = model.loss((rows, targets))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables, strict=True))

    for batch in data:
        step(*map(tf.constant, mine(batch)))
    assert close(model.variables, trained_alone(Network(), data), 1e-7)  # the learning rate is a float32
    assert same_on_all_ranks(model.variables)


@in_every_way
def batches_are_normalized_together(way):
    random = np.random.default_rng(1)
    rows, weights = random.standard_normal((8, 3)), random.standard_normal((8, 3))
    parts = [slice(0, 5), slice(5, 8)] if SIZE == 2 else [slice(rank, None, SIZE) for rank in range(SIZE)]
    together = hvd.SyncBatchNormalization(dtype="float64")
    alone = tf.keras.layers.BatchNormalization(dtype="float64")

    @way
    def normalized(layer, rows, weights):
        with tf.GradientTape() as tape:
            tape.watch(rows)
            results = layer(rows, training=True)
            loss = tf.reduce_sum(results * weights)
        return results, tape.gradient(loss, rows)

    for layer in (together, alone):
        layer.build((None, 3))
    part = parts[RANK]
    mine = normalized(together, tf.constant(rows[part]), tf.constant(weights[part]))
    everything = normalized(alone, tf.constant(rows), tf.constant(weights))
    assert close(mine, [each[part] for each in everything], 1e-6)
    assert close(together.variables, alone.variables, 1e-6)
    assert same_on_all_ranks(together.variables)
    far = (rows + 1e4).astype(np.float32)
    assert close(
        hvd.SyncBatchNormalization()(tf.constant(far[part]), training=True),
        tf.keras.layers.BatchNormalization()(tf.constant(far), training=True)[part],
        1e-2,
    )
    with raises(ValueError, "fused=True"):
        hvd.SyncBatchNormalization(fused=True)


import reductions  # noqa: E402, F401 - registers what is in it

run_checks()

# And at last rank 1 leaves while the others go on.


@tf.function
def step():
    return hvd.allreduce(tf.ones(3))


if RANK == 1:
    hvd.shutdown()
else:
    with raises(tf.errors.OpError, "JobAbortedError", "rank 1"):
        step()
    with raises(JobAbortedError, "rank 1"):
        hvd.allreduce(tf.ones(3))
    print("good: a_rank_that_leaves_early_is_missed", flush=True)
