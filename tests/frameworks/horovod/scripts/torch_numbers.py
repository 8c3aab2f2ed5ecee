"""Collectives in numbers: each case is computed twice, by the ranks and by Horovod's formula."""

import horovod.torch as hvd
import torch
from horovods_formulas import adasum

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
DTYPES = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
OPS = {
    hvd.Sum: lambda everybody: everybody.sum(0),
    hvd.Average: lambda everybody: everybody.sum(0) / len(everybody),
    hvd.Min: lambda everybody: everybody.amin(0),
    hvd.Max: lambda everybody: everybody.amax(0),
    hvd.Product: lambda everybody: everybody.prod(0),
}


def theirs(rank, dtype):
    return (torch.arange(5, dtype=torch.float64) + 3 * rank + 1).to(dtype)


def reduced(op, dtype, tensors, prescale=1.0, postscale=1.0):
    """The result by Horovod's formula: postscale * op(prescale * tensor of each rank)."""
    return (OPS[op](torch.stack(tensors).double() * prescale) * postscale).to(dtype)


def same(found, expected):
    return found.dtype == expected.dtype and torch.allclose(found, expected, rtol=1e-6, atol=0)


for dtype in DTYPES:
    everybody = [theirs(rank, dtype) for rank in range(SIZE)]
    for op in OPS:
        if op == hvd.Product and SIZE > 2 and not dtype.is_floating_point:
            continue  # a product of many is beyond the smaller types
        name = f"{dtype}.{op}"
        assert same(hvd.allreduce(everybody[RANK], op=op, name=name), reduced(op, dtype, everybody)), name
    if dtype.is_floating_point:
        for prescale, postscale in ((0.5, 1.0), (1.0, 0.25), (2.0, 0.5)):
            for op in (hvd.Sum, hvd.Average):
                scaled = {"prescale_factor": prescale, "postscale_factor": postscale}
                result = hvd.allreduce(everybody[RANK], op=op, name=f"{dtype}.{op}.{scaled}", **scaled)
                assert same(result, reduced(op, dtype, everybody, prescale, postscale)), (dtype, op, scaled)

# Groups, sets of ranks, and tensors that are overwritten: the same formulas.
pairs = [(theirs(rank, torch.float64), theirs(rank + 7, torch.float64)) for rank in range(SIZE)]
for op in OPS:
    for place, result in enumerate(hvd.grouped_allreduce(list(pairs[RANK]), op=op, prescale_factor=2.0)):
        expected = reduced(op, torch.float64, [pair[place] for pair in pairs], prescale=2.0)
        assert same(result, expected), op
    changed = [tensor.clone() for tensor in pairs[RANK]]
    hvd.allreduce_(changed[0], op=op)
    hvd.grouped_allreduce_(changed[1:], op=op)
    assert same(changed[1], reduced(op, torch.float64, [pair[1] for pair in pairs])), op
chosen = hvd.add_process_set([SIZE - 1]), hvd.add_process_set(range(SIZE - 1))
mine, ranks = (chosen[0], [SIZE - 1]) if RANK == SIZE - 1 else (chosen[1], range(SIZE - 1))
for op in OPS:
    result = hvd.allreduce(theirs(RANK, torch.float64), op=op, process_set=mine)
    assert same(result, reduced(op, torch.float64, [theirs(rank, torch.float64) for rank in ranks])), op

# Of rows that are divided unevenly the first ranks get one more.
for length in (SIZE, SIZE + 1, 2 * SIZE + 1, 3 * SIZE - 1):
    whole = [(torch.arange(2.0 * length) * (rank + 1)).reshape(length, 2) for rank in range(SIZE)]
    starts = [length // SIZE * rank + min(rank, length % SIZE) for rank in range(SIZE + 1)]
    own = slice(starts[RANK], starts[RANK + 1])
    for op in (hvd.Sum, hvd.Average):
        scaled = {"prescale_factor": 0.5, "postscale_factor": 4.0}
        expected = reduced(op, torch.float32, whole, 0.5, 4.0)[own]
        assert same(hvd.reducescatter(whole[RANK], op=op, **scaled), expected), length
        both = hvd.grouped_reducescatter([whole[RANK], whole[RANK] * 2], op=op, **scaled)
        assert same(both[0], expected), length
        assert same(both[1], expected * 2), length


def vector(rank, seed):
    return torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * seed + rank))


if SIZE & (SIZE - 1) == 0:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.float16, 1e-2)):
        for length in (1.0, 1e-6) if dtype is not torch.float16 else (1.0,):
            given = [[(vector(rank, seed) * length).to(dtype) for rank in range(SIZE)] for seed in range(3)]
            given[2] = [given[2][0] * (rank > 0) for rank in range(SIZE)]  # zeros, and vectors that are parallel
            found = [hvd.allreduce(vectors[RANK], op=hvd.Adasum) for vectors in given]
            found += hvd.grouped_allreduce([vectors[RANK] for vectors in given], op=hvd.Adasum)
            for vectors, result in zip(given * 2, found, strict=True):
                expected = adasum([each.double() for each in vectors])
                assert torch.allclose(result.double() / length, expected / length, tolerance, tolerance), (
                    dtype,
                    length,
                )


# Ranks that have joined count with zeros.
hvd.barrier()
if RANK == SIZE - 1:
    for dtype in (torch.int32, torch.float32):
        counted = [torch.zeros(5, dtype=dtype)] * (SIZE - 1) + [theirs(RANK, dtype)]
        for op in OPS:
            name = f"joined.{dtype}.{op}"
            assert same(hvd.allreduce(counted[-1], op=op, name=name), reduced(op, dtype, counted)), name
        scaled = hvd.allreduce(counted[-1], op=hvd.Max, prescale_factor=2.0, name=f"joined.{dtype}.scaled")
        assert same(scaled, reduced(hvd.Max, dtype, counted, prescale=2.0))
        pair = hvd.grouped_allreduce([counted[-1], counted[-1] + 2], name=f"joined.{dtype}.pair")
        assert same(pair[1], reduced(hvd.Average, dtype, [torch.zeros(5)] * (SIZE - 1) + [counted[-1] + 2]))
    sparse = torch.sparse_coo_tensor([[0, RANK, 2, RANK]], torch.arange(4.0) + RANK, (SIZE + 3,))  # one of them twice
    alone = hvd.sparse_allreduce_async(sparse, name="joined.sparse", op=hvd.Average)().to_dense()
    assert same(alone, sparse.to_dense() / SIZE)
assert hvd.join() == SIZE - 1
assert hvd.allreduce(torch.ones(1), op=hvd.Average).item() == 1
print("all as computed")
