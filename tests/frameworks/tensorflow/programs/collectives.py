"""Every collective, eagerly and in functions, on every dtype and many shapes, against numpy; and its gradients."""

import os

import numpy as np
import tensorflow as tf
from checking import check, in_every_way, run_checks
from expecting import raises

import distrun.tensorflow as hvd
from distrun.errors import MismatchError
from distrun.graphs.tensorflow.mechanism import mechanism

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
REAL = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
WHOLE = [tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint16, tf.uint32, tf.uint64]
COMPLEX = [tf.complex64, tf.complex128]
EVERY = [*REAL, *WHOLE, *COMPLEX, tf.bool]
SHAPES = [(), (1,), (0,), (5,), (3, 4), (2, 0, 3), (70_001,)]
KINDS = [(shape, dtype) for dtype in EVERY for shape in SHAPES]


def sample(shape, dtype, rank=RANK):
    """Small whole numbers that depend on the rank: exact in every dtype."""
    values = (np.arange(np.prod(shape, dtype=int)) * 7 + rank * 3) % 5 + 1
    values = values % 2 == 0 if dtype is tf.bool else values
    return values.reshape(shape).astype(dtype.as_numpy_dtype)


def everyone(shape, dtype):
    return [sample(shape, dtype, rank) for rank in range(SIZE)]


def added(arrays):
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = total | array if total.dtype == bool else total + array
    return total


def equal(tensor, array):
    given = tensor.numpy()
    return given.dtype == array.dtype and given.shape == array.shape and np.array_equal(given, array)


def all_equal(tensors, arrays):
    return all(equal(*pair) for pair in zip(tensors, arrays, strict=True))


def is_kernel():
    return mechanism().__name__.endswith("kernel")


@check
def the_mechanism_is_the_one_asked_for():
    wanted = "numpy_function" if os.environ.get("DISTRUN_TENSORFLOW_OP") == "numpy_function" else "kernel"
    assert mechanism().__name__.endswith(wanted), mechanism()


@in_every_way
def allreduce_reduces(way):
    @way
    def sums(tensors):
        return hvd.grouped_allreduce(tensors, op=hvd.Sum), [hvd.allreduce(each, op=hvd.Sum) for each in tensors[::9]]

    group, singles = sums([tf.constant(sample(*kind)) for kind in KINDS])
    assert all_equal(group, [added(everyone(*kind)) for kind in KINDS])
    assert all_equal(singles, [added(everyone(*kind)) for kind in KINDS[::9]])

    @way
    def others(tensor, whole):
        return [
            hvd.allreduce(tensor),
            hvd.allreduce(tensor, average=False),
            hvd.allreduce(tensor, op=hvd.Max, name="largest"),
            hvd.allreduce(tensor, op=hvd.Min),
            hvd.allreduce(tensor, op=hvd.Product),
            hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0),
            hvd.allreduce(whole),
            hvd.allreduce(tensor, compression=hvd.Compression.fp16, op=hvd.Sum),
        ]

    arrays, counts = everyone((3, 4), tf.float64), everyone((5,), tf.int32)
    expected = [sum(arrays) / SIZE, sum(arrays), np.max(arrays, 0), np.min(arrays, 0), np.prod(arrays, 0)]
    expected += [sum(arrays) * 2, sum(counts) // SIZE, sum(arrays)]
    assert all_equal(others(tf.constant(arrays[RANK]), tf.constant(counts[RANK])), expected)


@in_every_way
def inputs_stay_as_they_were(way):
    variable = tf.Variable(sample((70_001,), tf.float32))

    @way
    def twice():
        first = hvd.allreduce(variable, op=hvd.Sum)
        received = hvd.broadcast(variable, SIZE - 1)
        return first, received, hvd.allreduce(variable, op=hvd.Sum)

    first, received, second = twice()
    assert equal(first, added(everyone((70_001,), tf.float32)))
    assert equal(second, first.numpy())
    assert equal(received, sample((70_001,), tf.float32, SIZE - 1))
    assert equal(variable, sample((70_001,), tf.float32))


@in_every_way
def a_variable_that_was_assigned_a_result_is_its_own(way):
    for count in (70_001, 700_001):
        kept, moved, small = tf.Variable(tf.zeros(count)), tf.Variable(tf.ones(count)), tf.Variable(tf.ones(3))

        @way
        def step(kept=kept, moved=moved, small=small):
            total, few = hvd.grouped_allreduce([moved, small], op=hvd.Sum)
            kept.assign(total)
            moved.assign(hvd.allreduce(moved * 2.0))
            small.assign(few)

        for power in range(3):
            step()
            assert equal(kept, np.full(count, SIZE * 2.0**power, np.float32))
            assert equal(moved, np.full(count, 2.0 ** (power + 1), np.float32))
            assert equal(small, np.full(3, SIZE ** (power + 1), np.float32))


@in_every_way
def allgather_puts_rows_one_after_the_other(way):
    kinds = [((RANK, *rest), dtype) for dtype in EVERY for rest in [(), (3,), (0,)]]

    @way
    def gather(tensors):
        return hvd.grouped_allgather(tensors), hvd.allgather(tensors[0])

    group, single = gather([tf.constant(sample(*kind)) for kind in kinds])
    expected = [
        np.concatenate([sample((rank, *shape[1:]), dtype, rank) for rank in range(SIZE)]) for shape, dtype in kinds
    ]
    assert all_equal([*group, single], [*expected, expected[0]])


@in_every_way
def broadcast_copies_the_roots_tensor(way):
    @way
    def copies(tensors):
        return [hvd.broadcast(tensor, root) for root in (0, SIZE - 1) for tensor in tensors]

    kinds = KINDS[::4]
    results = copies([tf.constant(sample(*kind)) for kind in kinds])
    assert all_equal(results, [sample(*kind, root) for root in (0, SIZE - 1) for kind in kinds])
    with raises(ValueError, f"root_rank={SIZE}"):
        hvd.broadcast(tf.ones(1), SIZE)


@in_every_way
def alltoall_sends_each_rank_its_rows(way):
    splits = list(range(SIZE))  # rank r receives r rows from everybody

    @way
    def exchange(even, uneven, given):
        return hvd.alltoall(even), *hvd.alltoall(uneven, splits), *hvd.alltoall(uneven, given, name="alltoall")

    for dtype, rest in ((tf.float32, (2,)), (tf.bool, ()), (tf.bfloat16, (0,))):
        even, uneven = (SIZE * 2, *rest), (sum(splits), *rest)
        one, two, rows, three, again = exchange(
            tf.constant(sample(even, dtype)), tf.constant(sample(uneven, dtype)), tf.constant(splits, tf.int32)
        )
        start = sum(splits[:RANK])
        assert equal(one, np.concatenate([each[RANK * 2 : RANK * 2 + 2] for each in everyone(even, dtype)]))
        expected = np.concatenate([each[start : start + RANK] for each in everyone(uneven, dtype)])
        assert all_equal([two, three], [expected, expected])
        assert all_equal([rows, again], [np.full(SIZE, RANK, np.int32)] * 2)


@in_every_way
def reducescatter_keeps_an_even_share_of_rows(way):
    @way
    def scatter(tensors):
        return (hvd.grouped_reducescatter(tensors, op=hvd.Sum, postscale_factor=2.0), hvd.reducescatter(tensors[0]))

    kinds = [((SIZE + 1, *rest), dtype) for dtype in (tf.float32, tf.bfloat16, tf.int32) for rest in [(), (3,), (0,)]]
    group, average = scatter([tf.constant(sample(*kind)) for kind in kinds])
    shares = [2 if rank == 0 else 1 for rank in range(SIZE)]
    mine = slice(sum(shares[:RANK]), sum(shares[: RANK + 1]))
    assert all_equal(group, [added(everyone(*kind))[mine] * 2 for kind in kinds])
    assert equal(average, (added(everyone(*kinds[0])) / SIZE).astype(np.float32)[mine])
    with raises(ValueError, "reducescatter with op=max"):
        hvd.reducescatter(tf.ones(4), op=hvd.Max)


@in_every_way
def slices_of_everybody_are_put_together(way):
    @way
    def reduce(values, indices, tensor):
        slices = tf.IndexedSlices(values, indices, tf.constant([4, 2]))
        return hvd.grouped_allreduce([tensor, slices], name="mixed"), hvd.allreduce(slices, op=hvd.Sum)

    (tensor, average), total = reduce(tf.ones((RANK + 1, 2)), tf.range(RANK + 1), tf.constant(float(RANK)))
    counts = np.array([[max(0, SIZE - row)] * 2 for row in range(4)], np.float32)
    assert isinstance(average, tf.IndexedSlices)
    assert equal(tf.convert_to_tensor(total), counts)
    assert equal(tf.convert_to_tensor(average), counts / SIZE)
    assert equal(tensor, np.float32((SIZE - 1) / 2))
    for kind in (ValueError, NotImplementedError):
        with raises(kind, "op=max of tf.IndexedSlices"):
            hvd.allreduce(tf.IndexedSlices(tf.ones((1, 2)), [0]), op=hvd.Max)


@in_every_way
def gradients_flow_back(way):
    @way
    def gradients(tensor, rows):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([tensor, rows])
            weight = float(RANK + 1)
            losses = {
                "sum": hvd.allreduce(tensor, op=hvd.Sum) * weight,
                "average": hvd.allreduce(tensor) * weight,
                "scaled": hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=3.0) * weight,
                "broadcast": hvd.broadcast(tensor, 1) * weight,
                "allgather": hvd.allgather(tensor) * weight,
                "reducescatter": hvd.reducescatter(rows, op=hvd.Sum) * weight,
                "alltoall": hvd.alltoall(rows) * weight,
                "group": hvd.grouped_allreduce([tf.range(2), tensor], op=hvd.Sum)[1] * weight,
            }
        source = {"reducescatter": rows, "alltoall": rows}
        return {name: tape.gradient(loss, source.get(name, tensor)) for name, loss in losses.items()}

    found = gradients(tf.ones(2), tf.ones(SIZE))
    everybody, each = SIZE * (SIZE + 1) / 2, np.arange(1.0, SIZE + 1)
    average = everybody / SIZE
    assert equal(found["sum"], np.full(2, everybody, np.float32))
    assert equal(found["average"], np.full(2, average, np.float32))
    assert equal(found["scaled"], np.full(2, 3 * everybody, np.float32))
    assert equal(found["broadcast"], np.full(2, average if RANK == 1 else 0, np.float32))
    assert equal(found["allgather"], np.full(2, average, np.float32))
    assert equal(found["reducescatter"], each.astype(np.float32))
    assert equal(found["alltoall"], each.astype(np.float32))
    assert equal(found["group"], np.full(2, everybody, np.float32))


@in_every_way
def gradients_have_gradients(way):
    @way
    def second(tensor):
        with tf.GradientTape() as outer:
            outer.watch(tensor)
            with tf.GradientTape() as inner:
                inner.watch(tensor)
                loss = tf.reduce_sum(hvd.allreduce(tensor**3, op=hvd.Sum))
            first = inner.gradient(loss, tensor)
        return outer.gradient(first, tensor)

    assert equal(second(tf.constant([2.0])), np.array([6 * 2.0 * SIZE], np.float32))


@check
def max_has_no_gradient():
    with tf.GradientTape() as tape, raises(ValueError, "allreduce with op=max has no gradient"):
        tensor = tf.ones(2)
        tape.watch(tensor)
        tape.gradient(hvd.allreduce(tensor, op=hvd.Max), tensor)


@check
def shapes_are_known_while_tracing():
    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def traced(tensor):
        assert hvd.allreduce(tensor).shape.as_list() == [None, 3]
        assert hvd.allgather(tensor).shape.as_list() == [None, 3]
        assert hvd.alltoall(tensor, [1] * SIZE)[1].shape.as_list() in ([SIZE], [None])
        return hvd.reducescatter(tensor)

    assert traced(tf.ones((SIZE, 3))).shape == (1, 3)


@check
def loops_and_branches_hold_collectives():
    @tf.function
    def looped(tensor, times):
        for _ in tf.range(times):
            tensor = hvd.allreduce(tensor, op=hvd.Sum)
            if tf.reduce_sum(tensor) > 5.0:
                tensor = hvd.allreduce(tensor)
            else:
                tensor = hvd.allreduce(tensor, op=hvd.Sum)
        return tensor

    value, expected = looped(tf.ones(()), tf.constant(4)), 1.0
    for _ in range(4):
        expected *= SIZE
        expected *= 1 if expected > 5.0 else SIZE
    assert equal(value, np.float32(expected))


@check
def a_rank_may_trace_anew_by_itself():
    traces = []

    @tf.function
    def inner(tensor):
        traces.append("inner")
        return hvd.allreduce(tensor, op=hvd.Sum)

    @tf.function
    def outer(batch):
        traces.append("outer")
        mean = hvd.allreduce(tf.reduce_sum(batch), op=hvd.Sum)
        return mean + inner(tf.reduce_sum(batch)) + hvd.allreduce(tf.reduce_max(batch), op=hvd.Max)

    whole = SIZE * 4.0
    assert equal(outer(tf.ones(4)), np.float32(2 * whole + 1))
    smaller = whole - 1.0
    assert equal(outer(tf.ones(3 if RANK == SIZE - 1 else 4)), np.float32(2 * smaller + 1))
    assert traces == ["outer", "inner"] + ["outer"] * (RANK == SIZE - 1)
    assert equal(outer(tf.ones(4)), np.float32(2 * whole + 1))


@check
def a_rank_may_know_shapes_that_another_one_does_not():
    def added(*tensors):
        return hvd.grouped_allreduce(tensors, op=hvd.Sum)

    signature = [tf.TensorSpec([None])] * 2 if RANK else None
    results = tf.function(added, input_signature=signature)(tf.ones(3), tf.fill([300_001], 2.0))
    assert all_equal(results, [np.full(3, SIZE, np.float32), np.full(300_001, 2 * SIZE, np.float32)])


@check
def functions_are_told_apart():
    @tf.function
    def one(tensor):
        return hvd.allreduce(tensor, op=hvd.Sum)

    @tf.function
    def other(tensor):
        return hvd.allreduce(tensor, op=hvd.Sum)

    for step in range(3):
        assert equal(one(tf.constant(1.0)), np.float32(SIZE))
        assert equal(other(tf.constant([2.0, step])), np.array([2.0 * SIZE, step * SIZE], np.float32))
        assert equal(hvd.allreduce(tf.constant(5.0)), np.float32(5))


@check
def a_stored_function_still_reduces():
    import tempfile

    if not is_kernel():
        return
    module = tf.Module()
    module.reduce = tf.function(
        lambda tensor: hvd.allreduce(tensor, op=hvd.Sum, name="stored"), input_signature=[tf.TensorSpec([2])]
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        assert equal(tf.saved_model.load(folder).reduce(tf.ones(2)), np.full(2, SIZE, np.float32))


class Halves:
    """A compressor of one's own: sends the half of each element, and of real ones in another type."""

    @staticmethod
    def compress(tensor):
        return (tf.cast(tensor / 2, tf.float16), tensor.dtype) if tensor.dtype.is_floating else (tensor, None)

    @staticmethod
    def decompress(tensor, ctx):
        return tensor if ctx is None else tf.cast(tensor, ctx) * 2


@in_every_way
def a_compressor_of_ones_own_is_called(way):
    @way
    def reduce(tensor):
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            total, count = hvd.grouped_allreduce([tensor, tf.constant([3])], compression=Halves, op=hvd.Sum)
        part = hvd.reducescatter(tensor, compression=Halves, op=hvd.Sum)
        return total, count, part, tape.gradient(total, tensor)

    given = [np.float32([rank + 1, 5] + [2] * (SIZE - 2)) for rank in range(SIZE)]
    total, count, part, gradient = reduce(tf.constant(given[RANK]))
    assert all_equal([total, count, part], [sum(given), np.array([3 * SIZE], np.int32), sum(given)[RANK : RANK + 1]])
    assert equal(gradient, np.full(SIZE, SIZE, np.float32))


@check
def compressors_may_be_called_as_horovods():
    tensor, whole = tf.constant([1.5, 2.5], tf.float64), tf.constant([7])
    for compressor, dtype in ((hvd.Compression.fp16, tf.float16), (hvd.Compression.bf16, tf.bfloat16)):
        compressed, ctx = compressor.compress(tensor)
        assert compressed.dtype == dtype
        assert equal(compressor.decompress(compressed, ctx), tensor.numpy())
        assert equal(compressor.decompress(*compressor.compress(whole)), whole.numpy())
    assert equal(hvd.Compression.none.decompress(*hvd.Compression.none.compress(tensor)), tensor.numpy())
    assert hvd.Compression.fp16.compress(np.ones(1))[0].dtype == np.float16


@in_every_way
def what_cannot_travel_is_refused_in_a_sentence(way):
    eighths = tf.cast(tf.ones(3), tf.dtypes.experimental.float8_e4m3fn)
    for message, tensor in (("tf.string", tf.constant(["a"])), ("float8_e4m3fn", eighths)):
        with raises(ValueError, message, "known: bool"):
            way(hvd.allreduce)(tensor)
    for function in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
        with raises(ValueError, "0-dimensional"):
            way(function)(tf.constant(1.0))
    with raises(ValueError, "at least one tensor"):
        way(hvd.grouped_allreduce)([])
    with raises(ValueError, "Compression"):
        way(lambda tensor: hvd.allreduce(tensor, compression="fp16"))(tf.ones(1))
    with raises(ValueError, "drop average"):
        hvd.allreduce(tf.ones(1), average=True, op=hvd.Sum)


@check
def ranks_that_disagree_get_an_error_and_go_on():
    for kind in (MismatchError, tf.errors.FailedPreconditionError):
        with raises(kind, "allreduce 'uneven'", "collectives.py:"):
            hvd.allreduce(tf.ones(3 + RANK), name="uneven")

    @tf.function
    def uneven(tensor):
        return hvd.allreduce(tensor, name="uneven in graph")

    in_graph = tf.errors.FailedPreconditionError if is_kernel() else tf.errors.OpError
    with raises(in_graph, "MismatchError: allreduce 'uneven in graph'", "collectives.py:", "in uneven"):
        uneven(tf.ones(3 + RANK))
    for kind in (ValueError, tf.errors.InvalidArgumentError):
        with raises(kind, "does not come out even"):
            hvd.alltoall(tf.ones(SIZE + 1))
    in_graph = tf.errors.InvalidArgumentError if is_kernel() else tf.errors.OpError
    with raises(in_graph, "UsageError: alltoall", "does not come out even"):
        tf.function(hvd.alltoall)(tf.ones(SIZE + 1))
    assert equal(uneven(tf.ones(3)), np.ones(3, np.float32))


@check
def xla_is_refused_while_tracing():
    with raises(ValueError, "allreduce is inside jit_compile=True", "use jit_compile=False"):
        tf.function(hvd.allreduce, jit_compile=True)(tf.ones(2))

    @tf.function(jit_compile=True)
    def outer(tensor):
        return tf.function(hvd.allgather)(tensor)

    with raises(ValueError, "allgather is inside jit_compile=True"):
        outer(tf.ones(2))


@check
def rank_and_size_are_tensors_too():
    numbers = [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(), hvd.process_set_included_op()]
    expected = [RANK, SIZE, hvd.local_rank(), hvd.local_size(), 1]
    assert [int(number) for number in numbers] == expected

    @tf.function
    def in_graph():
        return [hvd.rank_op(), hvd.size_op(0), hvd.local_rank_op(), hvd.local_size_op(), hvd.process_set_included_op(0)]

    assert all_equal(in_graph(), [np.int32(number) for number in expected])


@check
def objects_travel():
    assert hvd.broadcast_object({"rank": RANK}, SIZE - 1) == {"rank": SIZE - 1}
    assert hvd.broadcast_object_fn(root_rank=0)(f"from {RANK}") == "from 0"
    assert hvd.allgather_object([RANK]) == [[rank] for rank in range(SIZE)]


run_checks()
