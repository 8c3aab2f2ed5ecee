"""Every collective on torch tensors of every dtype and many shapes, in all its forms, against plain torch."""

import torch
from checking import check, run_checks
from expecting import raises

import distrun.torch as hvd
from distrun.errors import MismatchError

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
REAL = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
SHAPES = [(), (1,), (0,), (5,), (3, 4), (2, 0, 3), (2, 3, 4), (70_001,)]


def sample(shape, dtype, rank=RANK):
    """Small whole numbers that depend on the rank: exact in every dtype."""
    count = torch.Size(shape).numel()
    values = (torch.arange(count) * 7 + rank * 3) % 5 + 1
    return (values % 2 == 0 if dtype is torch.bool else values.to(dtype)).reshape(shape)


def everyone(shape, dtype):
    return [sample(shape, dtype, rank) for rank in range(SIZE)]


def equal(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)


def added(tensors):
    total = tensors[0].clone() if tensors[0].dtype is torch.bool else sum(t.to(torch.complex128) for t in tensors)
    if tensors[0].dtype is torch.bool:
        for tensor in tensors[1:]:
            total |= tensor
        return total
    return (total if tensors[0].is_complex() else total.real).to(tensors[0].dtype)


@check
def allreduce_sums_every_dtype_and_shape():
    for dtype in [*REAL, *WHOLE, *COMPLEX, torch.bool]:
        for shape in SHAPES:
            tensor = sample(shape, dtype)
            assert equal(hvd.allreduce(tensor, op=hvd.Sum), added(everyone(shape, dtype))), (dtype, shape)
            assert equal(tensor, sample(shape, dtype)), "the input was changed"


@check
def the_other_operators_do_what_their_names_say():
    for dtype in [*REAL, torch.int32, torch.int64]:
        stack = torch.stack(everyone((5,), dtype)).double()
        tensor = sample((5,), dtype)
        assert equal(hvd.allreduce(tensor, op=hvd.Max), stack.amax(0).to(dtype))
        assert equal(hvd.allreduce(tensor, op=hvd.Min), stack.amin(0).to(dtype))
        assert equal(hvd.allreduce(tensor, op=hvd.Product), stack.prod(0).to(dtype)), dtype
        average = stack.sum(0) / SIZE
        assert equal(hvd.allreduce(tensor), (average if dtype.is_floating_point else average.trunc()).to(dtype)), dtype


@check
def average_and_op_are_two_ways_of_saying_the_same():
    tensor = sample((4,), torch.float32)
    assert equal(hvd.allreduce(tensor), hvd.allreduce(tensor, op=hvd.Average))
    assert equal(hvd.allreduce(tensor, True), hvd.allreduce(tensor, op=hvd.Average))
    assert equal(hvd.allreduce(tensor, False), hvd.allreduce(tensor, op=hvd.Sum))
    for average in (True, False):
        with raises(ValueError, f"average={average} and op=sum"):
            hvd.allreduce(tensor, average=average, op=hvd.Sum)


@check
def scale_factors_apply_before_and_after():
    tensor = sample((5,), torch.float64)
    scaled = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert equal(scaled, added(everyone((5,), torch.float64)) * 2)
    assert equal(hvd.allreduce_(tensor, None, "scaled", hvd.Sum, 0.5, 4.0), scaled)


@check
def in_place_works_in_the_tensors_own_memory():
    for dtype in [torch.float32, torch.bfloat16, torch.int64, torch.bool]:
        for shape in SHAPES:
            tensor = sample(shape, dtype)
            where = tensor.data_ptr()
            assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
            assert tensor.data_ptr() == where
            assert equal(tensor, added(everyone(shape, dtype)))
    parameter = torch.nn.Parameter(sample((3,), torch.float32))
    hvd.allreduce_(parameter, op=hvd.Sum)
    assert equal(parameter.detach(), added(everyone((3,), torch.float32)))


@check
def tensors_that_are_not_contiguous_are_copied_and_copied_back():
    for make in (
        lambda t: t.t(),
        lambda t: t[:, ::2],
        lambda t: t[0, ::2],
        lambda t: t.flatten()[1::3],
        lambda t: t.reshape(1, 2, 2, 3).contiguous(memory_format=torch.channels_last),
    ):
        for dtype in (torch.float32, torch.bfloat16):
            views = [make(tensor) for tensor in everyone((4, 3), dtype)]
            expected = added(views)
            assert equal(hvd.allreduce(views[RANK], op=hvd.Sum), expected)
            view = views[RANK]
            assert hvd.allreduce_(view, op=hvd.Sum) is view
            assert equal(view, expected)
            assert equal(hvd.broadcast(make(sample((4, 3), dtype)), 1), make(sample((4, 3), dtype, 1)))
            view = make(sample((4, 3), dtype))
            hvd.broadcast_(view, 1)
            assert equal(view, make(sample((4, 3), dtype, 1)))
    conjugated = torch.conj(sample((3,), torch.complex64) * 1j)
    assert equal(hvd.allreduce(conjugated, op=hvd.Sum), added(everyone((3,), torch.complex64)) * -1j)


@check
def async_forms_return_handles():
    tensor = sample((5,), torch.float32)
    expected = added(everyone((5,), torch.float32))
    handles = [hvd.allreduce_async(tensor, name=f"async.{i}", op=hvd.Sum) for i in range(20)]
    if RANK % 2:
        handles.reverse()
    for handle in handles:
        assert equal(hvd.synchronize(handle), expected)
        assert hvd.poll(handle) is True
    handle = hvd.allreduce_async_(tensor, name="async.in.place", op=hvd.Sum)
    assert hvd.synchronize(handle) is tensor
    assert equal(tensor, expected)


@check
def groups_may_mix_dtypes_and_shapes():
    kinds = [
        ((3,), torch.float32),
        ((2, 2), torch.int64),
        ((), torch.float32),
        ((4,), torch.bfloat16),
        ((0,), torch.bool),
    ]
    tensors = [sample(*kind) for kind in kinds]
    expected = [added(everyone(*kind)) for kind in kinds]
    for results in (
        hvd.grouped_allreduce(tensors, op=hvd.Sum),
        hvd.grouped_allreduce(tensors, name="group", op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async(tensors, op=hvd.Sum)),
    ):
        assert all(map(equal, results, expected))
    assert hvd.synchronize(hvd.grouped_allreduce_async_(tensors[:2], op=hvd.Sum))[1] is tensors[1]
    assert hvd.grouped_allreduce_(tensors[2:], op=hvd.Sum)[0] is tensors[2]
    assert all(map(equal, tensors, expected))
    with raises(ValueError, "at least one tensor"):
        hvd.grouped_allreduce([])


@check
def allgather_puts_rows_one_after_the_other():
    for dtype in [*REAL, *WHOLE, *COMPLEX, torch.bool]:
        for rest in [(), (3,), (2, 2), (0,)]:
            expected = torch.cat([sample((rank, *rest), dtype, rank) for rank in range(SIZE)])
            tensor = sample((RANK, *rest), dtype)
            assert equal(hvd.allgather(tensor), expected), (dtype, rest)
            assert equal(hvd.synchronize(hvd.allgather_async(tensor)), expected)
    tensors = [sample((RANK + 1, 2), torch.float32), sample((2,), torch.int32), sample((1, 3), torch.float32)]
    expected = [
        torch.cat([sample((rank + 1, 2), torch.float32, rank) for rank in range(SIZE)]),
        torch.cat(everyone((2,), torch.int32)),
        torch.cat(everyone((1, 3), torch.float32)),
    ]
    assert all(map(equal, hvd.grouped_allgather(tensors), expected))
    assert all(map(equal, hvd.synchronize(hvd.grouped_allgather_async(tensors, "gathered")), expected))


@check
def broadcast_copies_the_roots_tensor():
    for dtype in [*REAL, *WHOLE, *COMPLEX, torch.bool]:
        for root in (0, SIZE - 1):
            for shape in SHAPES:
                expected = sample(shape, dtype, root)
                tensor = sample(shape, dtype)
                assert equal(hvd.broadcast(tensor, root), expected)
                assert equal(hvd.synchronize(hvd.broadcast_async(tensor, root)), expected)
                assert equal(tensor, sample(shape, dtype))
                assert hvd.synchronize(hvd.broadcast_async_(tensor, root, "in place")) is tensor
                assert equal(tensor, expected)
                assert hvd.broadcast_(sample(shape, dtype), root_rank=root).shape == expected.shape
    with raises(ValueError, f"root_rank={SIZE}"):
        hvd.broadcast(torch.ones(1), SIZE)


@check
def alltoall_sends_each_rank_its_rows():
    for dtype in [*REAL, torch.int64, torch.bool]:
        for rest in [(), (2,), (0,)]:
            tensor = sample((SIZE * 2, *rest), dtype)
            expected = torch.cat(
                [sample((SIZE * 2, *rest), dtype, rank)[RANK * 2 : RANK * 2 + 2] for rank in range(SIZE)]
            )
            assert equal(hvd.alltoall(tensor), expected)
            splits = list(range(SIZE))  # rank r receives r rows from everybody
            tensor = sample((sum(splits), *rest), dtype)
            start = sum(splits[:RANK])
            expected = torch.cat(
                [sample((sum(splits), *rest), dtype, rank)[start : start + RANK] for rank in range(SIZE)]
            )
            for given in (splits, torch.tensor(splits, dtype=torch.int32)):
                received, rows = hvd.alltoall(tensor, given)
                assert equal(received, expected)
                assert rows.dtype == torch.int32
                assert rows.tolist() == [RANK] * SIZE
                received, rows = hvd.synchronize(hvd.alltoall_async(tensor, splits=given, name="alltoall"))
                assert equal(received, expected)
                assert rows.tolist() == [RANK] * SIZE
    with raises(ValueError, "does not come out even"):
        hvd.alltoall(torch.ones(SIZE + 1))
    with raises(ValueError, "whole numbers"):
        hvd.alltoall(torch.ones(SIZE), splits=[1])


@check
def reducescatter_keeps_an_even_share_of_rows():
    rows = SIZE + 1
    shares = [2 if rank == 0 else 1 for rank in range(SIZE)]
    start = sum(shares[:RANK])
    for dtype in [*REAL, torch.int32, torch.int64]:
        for rest in [(), (3,), (0,)]:
            total = added(everyone((rows, *rest), dtype))[start : start + shares[RANK]]
            tensor = sample((rows, *rest), dtype)
            assert equal(hvd.reducescatter(tensor, op=hvd.Sum), total)
            assert equal(hvd.synchronize(hvd.reducescatter_async(tensor, op=hvd.Sum)), total)
            group = hvd.grouped_reducescatter([tensor, tensor], op=hvd.Sum, postscale_factor=2.0)
            assert all(equal(part, total * 2) for part in group)
            group = hvd.synchronize(hvd.grouped_reducescatter_async([tensor], op=hvd.Sum))
            assert equal(group[0], total)
    average = hvd.reducescatter(sample((rows,), torch.float64))
    assert equal(average, added(everyone((rows,), torch.float64))[start : start + shares[RANK]] / SIZE)
    with raises(ValueError, "reducescatter with op=max"):
        hvd.reducescatter(torch.ones(4), op=hvd.Max)


@check
def half_precision_is_summed_in_float32():
    for dtype in (torch.float16, torch.bfloat16):
        tensor = torch.full((3,), 1.0 if RANK == 0 else 2.0**-12, dtype=torch.float32).to(dtype)
        exact = 1.0 + (SIZE - 1) * 2.0**-12
        reduced = hvd.allreduce(tensor, op=hvd.Sum)
        if hvd.local_size() == SIZE:  # what a host sends to another is in half precision again
            assert equal(reduced, torch.full((3,), exact).to(dtype))
        assert torch.allclose(reduced.float(), torch.full((3,), exact), atol=2 * torch.finfo(dtype).eps)


@check
def what_cannot_travel_is_refused_in_a_sentence():
    with raises(ValueError, "float8_e4m3fn", "known: bool"):
        hvd.allreduce(torch.ones(3).to(torch.float8_e4m3fn))
    with raises(ValueError, "on meta"):
        hvd.allreduce(torch.ones(3, device="meta"))
    with raises(ValueError, ".to_dense()"):
        hvd.allreduce(torch.eye(3).to_sparse())
    with raises(ValueError, "not list"):
        hvd.allreduce([1.0])
    with raises(ValueError, "0-dimensional"):
        hvd.allgather(torch.tensor(1.0))


@check
def ranks_that_disagree_get_an_error_and_go_on():
    with raises(MismatchError, "allreduce 'uneven'"):
        hvd.allreduce(torch.ones(3 + RANK), name="uneven")


@check
def a_compressor_of_the_users_own_is_called():
    calls = []

    class Halves:
        @staticmethod
        def compress(tensor):
            calls.append("compress")
            return (tensor / 2).to(torch.float16), tensor.dtype

        @staticmethod
        def decompress(tensor, ctx):
            calls.append("decompress")
            return tensor.to(ctx) * 2

    tensor = sample((5,), torch.float32)
    expected = added(everyone((5,), torch.float32))
    assert equal(hvd.allreduce(tensor, op=hvd.Sum, compression=Halves), expected)
    assert all(
        equal(each, expected) for each in hvd.grouped_allreduce([tensor, tensor], op=hvd.Sum, compression=Halves)
    )
    assert calls == ["compress", "decompress", "compress", "compress", "decompress", "decompress"]
    exact = torch.full((5,), 1.0 + 2.0**-20)
    for ours in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        encoded, context = ours.compress(exact)
        is_encoded = hvd.local_size() < SIZE and ours is not hvd.Compression.none  # only what leaves the host is
        expected = ours.decompress(encoded, context) if is_encoded else exact
        assert equal(hvd.allreduce(exact, compression=ours), expected)
        assert ours.decompress(encoded, context).dtype == torch.float32
        assert ours.compress(torch.arange(3))[0].dtype == torch.int64


@check
def objects_travel():
    assert hvd.broadcast_object({"rank": RANK}, SIZE - 1) == {"rank": SIZE - 1}
    assert hvd.allgather_object(torch.tensor(RANK)) == [torch.tensor(rank) for rank in range(SIZE)]
    assert hvd.cross_size() * hvd.local_size() == SIZE
    assert hvd.cross_rank() * hvd.local_size() + hvd.local_rank() == RANK


run_checks()
