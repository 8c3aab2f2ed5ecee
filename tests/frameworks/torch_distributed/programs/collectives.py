"""Every collective of torch.distributed in process groups of every layout, compared with what torch computes alone."""

import functools

import torch
import torch.distributed as dist
from expecting import raises
from layouts import WAYS, check, finish, layouts, run_checks, same, same_each

REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
ALL = (*REAL, *WHOLE, *COMPLEX, torch.bool)
SHAPES = ((3, 4), (), (0,), (2, 0), (5,))
Op = dist.ReduceOp


def reduced(tensors, op):
    """Return the reduction of all ranks' tensors."""
    stacked = torch.stack(tensors)
    wide = stacked.float() if stacked.dtype in (torch.float16, torch.bfloat16) else stacked
    if op == Op.SUM:
        total = wide.sum(0)
    elif op == Op.AVG:
        total = wide.sum(0) / len(tensors) if wide.is_floating_point() else wide.sum(0) // len(tensors)
    elif op == Op.PRODUCT:
        total = wide.prod(0)
    elif op == Op.MIN:
        total = wide.amin(0)
    elif op == Op.MAX:
        total = wide.amax(0)
    else:
        combine = {Op.BAND: torch.bitwise_and, Op.BOR: torch.bitwise_or, Op.BXOR: torch.bitwise_xor}[op.op]
        total = functools.reduce(combine, tensors)
    return total.to(stacked.dtype)


def operators(dtype):
    """The operators that elements have."""
    if dtype.is_complex:
        return [Op.SUM]
    if dtype is torch.bool:
        return [Op.BAND, Op.BOR, Op.BXOR]
    ordered = [Op.SUM, Op.AVG, Op.PRODUCT, Op.MIN, Op.MAX]
    return ordered if dtype.is_floating_point else [*ordered, Op.BAND, Op.BOR, Op.BXOR]


@check
def all_reduce(at):
    for dtype in at.some(ALL):
        for op in map(Op, operators(dtype)):
            for shape in at.some(SHAPES if op == Op.SUM else SHAPES[:2]):
                for way in WAYS:
                    tensors = at.tensors(shape, dtype)
                    finish(dist.all_reduce(tensors[at.rank], op, at.group, way))
                    same(tensors[at.rank], reduced(at.tensors(shape, dtype), op), 1e-6)


@check
def all_reduce_of_tensors_that_are_not_contiguous(at):
    tensors = at.tensors((4, 6))
    own = tensors[at.rank].clone()
    view = own.t()[1:4:2]
    dist.all_reduce(view, group=at.group)
    expected = sum(tensors)
    same(view, expected.t()[1:4:2])
    same(own[:, 0], tensors[at.rank][:, 0])


@check
def all_reduce_with_a_factor(at):
    for factor in (0.5, torch.tensor([0.5])):
        own = at.tensors((3,))[at.rank]
        dist.all_reduce(own, Op.PREMUL_SUM(factor), at.group)
        same(own, sum(at.tensors((3,))) / 2)
    op = Op.PREMUL_SUM(0.5**at.rank)  # each rank's own; the sums are exact in any order
    scaled = sum(tensor * 0.5**rank for rank, tensor in enumerate(at.tensors((at.size, 3))))
    own = at.tensors((at.size, 3))[at.rank]
    part = torch.zeros(3)
    dist.reduce_scatter_tensor(part, own.view(-1), op, at.group)
    same(part, scaled[at.rank])
    sparse = own.to_sparse(1)
    dist.all_reduce(sparse, op, at.group)
    same(sparse.to_dense(), scaled)
    view = own.t()
    dist.all_reduce(view, op, at.group)
    same(own, scaled)


@check
def all_reduce_of_parameters(at):
    own = torch.nn.Parameter(at.tensors((3,))[at.rank])
    dist.all_reduce(own, group=at.group)
    same(own.data, sum(at.tensors((3,))))


@check
def all_reduce_of_sparse_tensors(at):
    dense = at.tensors((4, 3))
    own = dense[at.rank].to_sparse(1)
    dist.all_reduce(own, group=at.group)
    same(own.to_dense(), sum(dense))


@check
def all_reduce_coalesced(at):
    shapes = [(2,), (3, 2), ()]
    for way in WAYS:
        everybodys = [at.tensors(shape) for shape in shapes]
        own = [tensors[at.rank] for tensors in everybodys]
        expected = [sum(tensors) for tensors in everybodys]
        with dist._coalescing_manager(at.group, async_ops=way) as manager:
            for tensor in own:
                dist.all_reduce(tensor, group=at.group)
        if way:
            manager.wait()
        same_each(own, expected)
    own = [at.tensors(shape)[at.rank] for shape in shapes]
    dist.all_reduce_coalesced(own, group=at.group)
    same_each(own, expected)


@check
def reduce(at):
    root, _ = at.other_root()
    for op in map(Op, (Op.SUM, Op.MAX, Op.BXOR)):
        for way in WAYS:
            dtype = torch.int32 if op == Op.BXOR else torch.float32
            tensors = at.tensors((3,), dtype)
            own = tensors[at.rank].clone()
            finish(dist.reduce(own, root, op, at.group, way))
            same(own, reduced(tensors, op) if at.ranks[at.rank] == root else tensors[at.rank])


@check
def broadcast(at):
    root, place = at.other_root()
    for dtype, shape, way in at.cases((*ALL, torch.float8_e4m3fn, torch.uint16), SHAPES):
        tensors = at.tensors(shape, dtype)
        finish(dist.broadcast(tensors[at.rank], root, at.group, way))
        expected = at.tensors(shape, dtype)[place]
        same(tensors[at.rank].view(torch.uint8) if dtype.itemsize == 1 else tensors[at.rank],
             expected.view(torch.uint8) if dtype.itemsize == 1 else expected)  # fmt: skip
    view = torch.zeros(4, 4).t()[1]
    view += at.rank
    dist.broadcast(view, root, at.group)
    assert view.tolist() == [float(place)] * 4
    one = torch.full((1,), float(at.rank)).expand(4)  # which nothing can be written into, as need not be at the root
    one = one if at.rank == place else one.clone()
    dist.broadcast(one, root, at.group)
    assert one.tolist() == [float(place)] * 4


@check
def all_gather(at):
    for dtype, shape, way in at.cases(ALL, SHAPES):
        tensors = at.tensors(shape, dtype)
        received = [torch.empty_like(tensor) for tensor in tensors]
        finish(dist.all_gather(received, tensors[at.rank], at.group, way))
        same_each(received, tensors)


@check
def all_gather_of_different_shapes(at):
    tensors = [at.tensors((1 + at.ranks[place] % 3, 2))[place] for place in range(at.size)]
    received = [torch.empty_like(tensor) for tensor in tensors]
    dist.all_gather(received, tensors[at.rank], at.group)
    same_each(received, tensors)


@check
def all_gather_into_one_tensor(at):
    for dtype, way in at.cases(ALL):
        tensors = at.tensors((2, 3), dtype)
        one, stacked = torch.empty(2 * at.size, 3, dtype=dtype), torch.empty(at.size, 2, 3, dtype=dtype)
        finish(dist.all_gather_into_tensor(one, tensors[at.rank], at.group, way))
        finish(dist.all_gather_into_tensor(stacked, tensors[at.rank], at.group, way))
        same(one, torch.cat(tensors))
        same(stacked, torch.stack(tensors))
    with dist._coalescing_manager(at.group):
        first, second = torch.empty(2 * at.size), torch.empty(3 * at.size)
        dist.all_gather_into_tensor(first, at.tensors((2,))[at.rank], at.group)
        dist.all_gather_into_tensor(second, at.tensors((3,), seed=1)[at.rank], at.group)
    same(first, torch.cat(at.tensors((2,))))
    same(second, torch.cat(at.tensors((3,), seed=1)))


@check
def results_in_the_memory_of_what_is_given(at):
    for count in (3, 300_000):  # staged as one piece, and in several
        tensors = at.tensors((count,))
        for place in range(at.size):  # where the result goes, for one of them
            whole = torch.zeros(at.size * count)
            own = whole[place * count : (place + 1) * count]
            own.copy_(tensors[at.rank])
            dist.all_gather_into_tensor(whole, own, at.group)
            same(whole, torch.cat(tensors))
        wholes = at.tensors((at.size * count,))
        own = wholes[at.rank][at.rank * count : (at.rank + 1) * count]
        expected = sum(at.tensors((at.size * count,)))[at.rank * count : (at.rank + 1) * count]
        dist.reduce_scatter_tensor(own, wholes[at.rank], group=at.group)
        same(own, expected, 1e-6)


@check
def reduce_scatter(at):
    for dtype in at.some((*REAL, *WHOLE)):
        for op in map(Op, operators(dtype)):
            for sizes in ([2] * at.size, [1 + place for place in range(at.size)]):
                for way in WAYS:
                    parts = [at.tensors((size,), dtype, seed=place) for place, size in enumerate(sizes)]
                    output = torch.empty(sizes[at.rank], dtype=dtype)
                    finish(dist.reduce_scatter(output, [part[at.rank] for part in parts], op, at.group, way))
                    same(output, reduced(parts[at.rank], op), 1e-6)


@check
def reduce_scatter_of_one_tensor(at):
    for op in map(Op, (Op.SUM, Op.AVG, Op.MAX)):
        for way in WAYS:
            wholes = at.tensors((2 * at.size, 3))
            output = torch.empty(2, 3)
            finish(dist.reduce_scatter_tensor(output, wholes[at.rank], op, at.group, way))
            same(output, reduced(wholes, op)[2 * at.rank : 2 * at.rank + 2], 1e-6)
            same(wholes[at.rank], at.tensors((2 * at.size, 3))[at.rank])
    with dist._coalescing_manager(at.group):
        first, second = torch.empty(1), torch.empty(2)
        dist.reduce_scatter_tensor(first, at.tensors((at.size,))[at.rank], group=at.group)
        dist.reduce_scatter_tensor(second, at.tensors((2 * at.size,), seed=1)[at.rank], group=at.group)
    same(first, sum(at.tensors((at.size,)))[at.rank : at.rank + 1])
    same(second, sum(at.tensors((2 * at.size,), seed=1))[2 * at.rank : 2 * at.rank + 2])


@check
def gather(at):
    root, place = at.other_root()
    for dtype, way in at.cases(ALL):
        tensors = at.tensors((2, 2), dtype)
        received = [torch.empty_like(tensor) for tensor in tensors] if at.rank == place else None
        finish(dist.gather(tensors[at.rank], received, root, at.group, way))
        for one, expected in zip(received or [], tensors, strict=False):
            same(one, expected)


@check
def scatter(at):
    root, place = at.other_root()
    for dtype, way in at.cases(ALL):
        parts = at.tensors((2, 2), dtype)
        received = torch.empty(2, 2, dtype=dtype)
        finish(dist.scatter(received, parts if at.rank == place else None, root, at.group, way))
        same(received, parts[at.rank])


@check
def all_to_all(at):
    for way in WAYS:
        # Rank s sends s + d + 1 elements to rank d.
        parts = [at.tensors((source + at.rank + 1,), seed=at.rank)[source] for source in range(at.size)]
        sent = [at.tensors((at.rank + other + 1,), seed=other)[at.rank] for other in range(at.size)]
        received = [torch.empty_like(part) for part in parts]
        finish(dist.all_to_all(received, sent, at.group, way))
        same_each(received, parts)


@check
def all_to_all_of_one_tensor(at):
    for dtype, way in at.cases(ALL):
        wholes = at.tensors((2 * at.size, 3), dtype)
        output = torch.empty(2 * at.size, 3, dtype=dtype)
        finish(dist.all_to_all_single(output, wholes[at.rank], group=at.group, async_op=way))
        same(output, torch.cat([whole[2 * at.rank : 2 * at.rank + 2] for whole in wholes]))
    rows = at.rank + 1  # rank r sends r + 1 rows to each, the last one none
    sent = [rows] * (at.size - 1) + [0]
    received = [each + 1 for each in range(at.size)] if at.rank < at.size - 1 else [0] * at.size
    source = torch.full((sum(sent), 2), float(at.rank))
    output = torch.empty(sum(received), 2)
    dist.all_to_all_single(output, source, received, sent, at.group)
    assert output[:, 0].tolist() == [float(rank) for rank, count in enumerate(received) for _ in range(count)]


@check
def barrier(at):
    dist.barrier(at.group)
    finish(dist.barrier(at.group, async_op=True))
    dist.monitored_barrier(at.group)


@check
def objects(at):
    root, place = at.other_root()
    gathered = [None] * at.size
    dist.all_gather_object(gathered, {"rank": at.rank, "text": "x" * at.rank}, at.group)
    assert gathered == [{"rank": rank, "text": "x" * rank} for rank in range(at.size)]
    given = [(at.rank, "a"), None]
    dist.broadcast_object_list(given, root, at.group)
    assert given == [(place, "a"), None]
    gathered = [None] * at.size if at.rank == place else None
    dist.gather_object(at.rank, gathered, root, at.group)
    assert gathered in (None, list(range(at.size)))
    received = [None]
    dist.scatter_object_list(received, [f"for {rank}" for rank in range(at.size)], root, at.group)
    assert received == [f"for {at.rank}"]


@check
def futures_and_works(at):
    tensors = at.tensors((3,))
    work = dist.all_reduce(tensors[at.rank], group=at.group, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    same(doubled.wait(), 2 * sum(at.tensors((3,))))
    assert work.is_completed()
    assert work.exception() is None
    same(work.result()[0], sum(at.tensors((3,))))
    # A callback may communicate itself, and wait for that.
    tensors = at.tensors((2,))

    def again(future):
        first = future.value()[0].clone()
        return dist.all_reduce(first, group=at.group, async_op=True).get_future().wait()[0]

    work = dist.all_reduce(tensors[at.rank], group=at.group, async_op=True)
    same(work.get_future().then(again).wait(), at.size * sum(at.tensors((2,))))
    # A rank that gathers into copies finds the results in place when the work is done.
    received = [torch.zeros(2).double() for _ in at.ranks]
    work = dist.all_gather(received, torch.full((2,), float(at.rank)).double(), at.group, async_op=True)
    work.get_future().wait()
    assert [one[0].item() for one in received] == [float(rank) for rank in range(at.size)]


@check
def what_has_no_meaning_is_refused(at):
    one, ones, group = torch.ones(1), torch.ones(at.size), at.group
    uneven = [at.size + 1, -1, *[0] * at.size][: at.size]
    for words, call in {
        "BAND has no meaning for torch.float32": lambda: dist.all_reduce(torch.ones(2), Op(Op.BAND), group),
        "does not fit parts of": lambda: dist.reduce_scatter_tensor(one, torch.ones(at.size + 1), group=group),
        "splits [2": lambda: dist.all_to_all_single(ones, ones, None, [2] * at.size, group),
        f"splits [{at.size + 1}": lambda: dist.all_to_all_single(ones, ones, uneven, uneven, group),
        "shape []": lambda: dist.all_to_all_single(*[torch.ones(())] * 2, *[[1] * at.size] * 2, group),
        "rank -1 is not in process group": lambda: dist.broadcast(one, group=group, group_src=-1),
        f"from 0 to {at.size - 1}": lambda: dist.broadcast(one, group=group, group_src=-1),
        f"rank {at.size} is not in process group": lambda: dist.reduce(one, group=group, group_dst=at.size),
        "to_dense": lambda: dist.all_gather([one] * at.size, one.to_sparse(), group=group),
        "at least one tensor": lambda: dist.all_reduce_coalesced([], group=group),
    }.items():
        with raises(ValueError, words):
            call()
    for dtype in (torch.int32, torch.float64):
        with raises(ValueError, "of torch.float32 and of ", str(dtype)):
            dist.all_gather_into_tensor(ones.to(dtype), one, group=group)
        with raises(ValueError, "of torch.float32", str(dtype)):
            dist.reduce_scatter_tensor(one.to(dtype), ones, group=group)
    right = [one] * at.size
    for wrong in ([*right, one], right[1:]):
        for call in (
            lambda: dist.all_gather(wrong, one, group),  # noqa: B023
            lambda: dist.reduce_scatter(ones, wrong, group=group),  # noqa: B023
            lambda: dist.all_to_all(wrong, right, group),  # noqa: B023
            lambda: dist.all_to_all(right, wrong, group),  # noqa: B023
        ):
            with raises(ValueError, f"a list of {len(wrong)} tensors does not fit {at.size} ranks"):
                call()
    shared = torch.zeros(1).expand(4)
    calls = [
        lambda: dist.all_reduce(shared, group=group),
        lambda: dist.all_reduce(torch.zeros(1).int().expand(4), Op(Op.BAND), group),
        lambda: dist.reduce(shared, group=group, group_dst=at.rank),
        lambda: dist.all_gather([shared] * at.size, torch.ones(4), group),
        lambda: dist.all_to_all([shared] * at.size, [torch.ones(4)] * at.size, group),
        lambda: dist.reduce_scatter(shared, [torch.ones(4)] * at.size, group=group),
        lambda: dist.broadcast(shared, group=group, group_src=(at.rank + 1) % at.size),
    ]
    for call in calls if at.size > 1 else calls[:-1]:  # what the root broadcasts may be shared
        with raises(ValueError, "shape [4]", "elements that share their memory"):
            call()


dist.init_process_group("distrun")
run_checks(list(layouts()))
dist.destroy_process_group()
