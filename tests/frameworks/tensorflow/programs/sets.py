"""A process set whose members have other positions in it than in the world: ranks 0 and 2 of three."""

import numpy as np
import tensorflow as tf
from checking import check, close, in_every_way, run_checks
from expecting import raises

import distrun.tensorflow as hvd

hvd.init()
RANK = hvd.rank()
MEMBERS = [0, 2]
PAIR = hvd.add_process_set(MEMBERS)
INSIDE = PAIR.included()
PLACE = MEMBERS.index(RANK) if INSIDE else -1

v1 = tf.compat.v1


def array(rank=RANK):
    return np.float32(rank + 1) * np.arange(4, dtype=np.float32).reshape(2, 2)


def each_kind(tensor):
    return [
        hvd.allreduce(tensor, process_set=PAIR),
        hvd.allgather(tensor, process_set=PAIR),
        hvd.broadcast(tensor, 2, process_set=PAIR),
        *hvd.alltoall(tensor, [1, 1], process_set=PAIR),
        hvd.reducescatter(tensor, process_set=PAIR, op=hvd.Sum),
        tf.convert_to_tensor(hvd.allreduce(tf.IndexedSlices(tensor, [0, 1], [2, 2]), process_set=PAIR)),
        hvd.grouped_allreduce([tensor], process_set=PAIR, compression=hvd.Compression.fp16)[0],
    ]


def are_as_expected(found):
    mean = (array(0) + array(2)) / 2
    sent = np.stack([array(0)[PLACE], array(2)[PLACE]])
    gathered = np.concatenate([array(0), array(2)])
    expected = [mean, gathered, array(2), sent, np.ones(2), 2 * mean[PLACE : PLACE + 1], mean, mean]
    assert close(found, expected), found


@in_every_way
def collectives_are_those_of_the_members(way):
    if INSIDE:
        are_as_expected(way(each_kind)(tf.constant(array())))
    assert float(way(hvd.allreduce)(tf.constant(float(RANK)))) == 1.0


@check
def they_are_in_a_session_beside_those_of_the_world():
    with tf.Graph().as_default(), v1.Session() as session:
        tensor = tf.identity(array())
        fetches = [hvd.allreduce(tensor, op=hvd.Max), each_kind(tensor) if INSIDE else []]
        largest, found = session.run(fetches)
        assert np.array_equal(largest, array(2))
        if INSIDE:
            are_as_expected(found)


@in_every_way
def gradients_flow_between_members(way):
    @way
    def gradients(tensor):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(tensor)
            losses = [result * (PLACE + 1.0) for result in each_kind(tensor) if result.dtype.is_floating][:5]
        return [tape.gradient(loss, tensor) for loss in losses]

    if INSIDE:
        ones, rows = np.ones((2, 2)), np.array([[1.0, 1.0], [2.0, 2.0]])
        expected = [1.5 * ones, 1.5 * ones, (1.5 if RANK == 2 else 0) * ones, rows, rows]
        assert close(gradients(tf.constant(array())), expected)


@in_every_way
def members_train_together(way):
    if not INSIDE:
        return
    variable = tf.Variable([float(RANK), 1.0])
    hvd.broadcast_variables([variable], root_rank=2, process_set=PAIR)
    assert variable.numpy().tolist() == [2.0, 1.0]
    (tensor,) = hvd.broadcast_([variable], root_rank=0, process_set=PAIR)
    assert tensor.numpy().tolist() == [2.0, 1.0]
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), process_set=PAIR)

    @way
    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * (PLACE + 1.0))
        tape = hvd.DistributedGradientTape(tape, process_set=PAIR)
        ((mine, _),) = optimizer.compute_gradients(lambda: tf.reduce_sum(variable * (PLACE + 1.0)), [variable])
        return tape.gradient(loss, variable), mine

    assert close(gradient(), [[1.5, 1.5]] * 2)


@check
def members_normalize_their_batches_together():
    if INSIDE:
        layer = hvd.SyncBatchNormalization(process_set=PAIR, momentum=0.0)
        layer(tf.constant(array()), training=True)
        rows = np.concatenate([array(0), array(2)])
        assert close([layer.moving_mean, layer.moving_variance], [rows.mean(0), rows.var(0)], 1e-5)


@in_every_way
def the_set_is_known_by_its_number(way):
    number = PAIR.process_set_id

    @way
    def facts():
        return hvd.size_op(number), hvd.size_op(), hvd.process_set_included_op(number), hvd.process_set_included_op()

    assert [int(each) for each in facts()] == [2, 3, int(INSIDE), 1]


@check
def objects_travel_among_members():
    if INSIDE:
        assert hvd.broadcast_object(RANK, 2, process_set=PAIR) == 2
        assert hvd.broadcast_object_fn(2, process_set=PAIR)(RANK) == 2
        assert hvd.allgather_object(RANK, process_set=PAIR) == MEMBERS


@check
def others_are_refused():
    if not INSIDE:
        for function in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
            with raises(ValueError, "rank 1 does not belong to the process set"):
                function(tf.ones(2), process_set=PAIR)
    elif RANK == 0:
        with raises(ValueError, "root_rank=1 is not a rank of this process set"):
            hvd.broadcast(tf.ones(2), 1, process_set=PAIR)


@check
def a_rank_without_data_joins():
    if RANK == 1:
        last = hvd.join()
    else:
        assert close([tf.function(hvd.allreduce)(tf.ones(2), op=hvd.Sum)], [[2.0, 2.0]])
        last = hvd.join()
    assert last in MEMBERS


run_checks()
