"""Reductions in numbers: each case is computed twice, by two ranks and by Horovod's formula."""

import horovod.torch as hvd
import torch

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
DTYPES = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
OPS = {
    hvd.Sum: lambda both: both.sum(0),
    hvd.Average: lambda both: both.sum(0) / SIZE,
    hvd.Min: lambda both: both.amin(0),
    hvd.Max: lambda both: both.amax(0),
    hvd.Product: lambda both: both.prod(0),
}


def theirs(rank, dtype):
    return (torch.arange(5, dtype=torch.float64) + 3 * rank + 1).to(dtype)


def reduced(op, dtype, tensors, prescale=1.0, postscale=1.0):
    """The result by Horovod's formula: postscale * op(prescale * tensor of each rank)."""
    return (OPS[op](torch.stack(tensors).double() * prescale) * postscale).to(dtype)


for dtype in DTYPES:
    everybody = [theirs(rank, dtype) for rank in range(SIZE)]
    for op in OPS:
        name = f"{dtype}.{op}"
        assert torch.equal(hvd.allreduce(everybody[RANK], op=op, name=name), reduced(op, dtype, everybody)), name
    if dtype.is_floating_point:
        for prescale, postscale in ((0.5, 1.0), (1.0, 0.25), (2.0, 0.5)):
            for op in (hvd.Sum, hvd.Average):
                scaled = {"prescale_factor": prescale, "postscale_factor": postscale}
                result = hvd.allreduce(everybody[RANK], op=op, name=f"{dtype}.{op}.{scaled}", **scaled)
                assert torch.equal(result, reduced(op, dtype, everybody, prescale, postscale)), (dtype, op, scaled)

# Ranks that have joined count with zeros.
hvd.barrier()
if RANK == SIZE - 1:
    for dtype in (torch.int32, torch.float32):
        counted = [torch.zeros(5, dtype=dtype)] * (SIZE - 1) + [theirs(RANK, dtype)]
        for op in OPS:
            name = f"joined.{dtype}.{op}"
            assert torch.equal(hvd.allreduce(counted[-1], op=op, name=name), reduced(op, dtype, counted)), name
        scaled = hvd.allreduce(counted[-1], op=hvd.Max, prescale_factor=2.0, name=f"joined.{dtype}.scaled")
        assert torch.equal(scaled, reduced(hvd.Max, dtype, counted, prescale=2.0))
        pair = hvd.grouped_allreduce([counted[-1], counted[-1] + 2], name=f"joined.{dtype}.pair")
        assert torch.equal(pair[1], reduced(hvd.Average, dtype, [torch.zeros(5)] * (SIZE - 1) + [counted[-1] + 2]))
assert hvd.join() == SIZE - 1
assert hvd.allreduce(torch.ones(1), op=hvd.Average).item() == 1
print("all as computed")
