"""Training in numbers: gradients, steps, statistics and samples by the ranks, and by Horovod's formulas."""

import math
import warnings

import horovod.torch as hvd
import torch
from horovods_formulas import adasum

warnings.filterwarnings("ignore", message="Sparse")
hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
ONE_HOST = hvd.local_size() == SIZE
RATE = 0.5


def factor(rank, step=0):
    """A rank's gradient, when the loss is this times a parameter."""
    return torch.arange(6, dtype=torch.float64).reshape(3, 2) + 1 + 10 * rank + 100 * step


def of_all(step=0):
    return torch.stack([factor(rank, step) for rank in range(SIZE)])


def close(found, expected, tolerance=1e-9):
    return found.shape == expected.shape and torch.allclose(found.double(), expected.double(), tolerance, tolerance)


# The gradients that flow back through collectives: of an allreduce by the same formula; of an allgather and a broadcast
# averaged; of a reducescatter times the ranks.
def backward(function, tensor):
    leaf = tensor.clone().requires_grad_()
    result = function(leaf)
    (result * factor(RANK).reshape(-1)[: result.numel()].reshape(result.shape)).sum().backward()
    return leaf.grad


ONES = torch.ones(3, 2, dtype=torch.float64)
scaled = {"prescale_factor": 3.0, "postscale_factor": 0.5}
for op, expected in ((hvd.Sum, of_all().sum(0)), (hvd.Average, of_all().mean(0))):
    assert close(backward(lambda leaf, op=op: hvd.allreduce(leaf, op=op, **scaled), ONES), expected * 1.5), op
    gradient = backward(lambda leaf, op=op: hvd.grouped_allreduce([leaf, leaf], op=op)[0], ONES)
    assert close(gradient, expected), op
assert close(backward(lambda leaf: hvd.broadcast(leaf, 1), ONES), of_all().mean(0) * (RANK == 1))
total = sum(range(1, SIZE + 1))
rows = torch.stack([torch.arange(1.0, total + 1) + 10 * rank for rank in range(SIZE)]).mean(0)
leaf = torch.ones(RANK + 1, dtype=torch.float64, requires_grad=True)
(hvd.allgather(leaf) * (torch.arange(1, total + 1) + 10 * RANK)).sum().backward()
assert close(leaf.grad, rows[sum(range(RANK + 1)) :][: RANK + 1])
for op, times in ((hvd.Sum, SIZE), (hvd.Average, 1)):
    leaf = torch.ones(SIZE + 1, dtype=torch.float64, requires_grad=True)
    own = hvd.reducescatter(leaf, op=op)
    (own * (RANK + 1)).sum().backward()
    assert close(leaf.grad, torch.tensor([1.0, *range(1, SIZE + 1)]) * times), op


# Optimizers: gradients are added up over the passes, then reduced; Average splits its division by the predivide factor.
def trained(make=lambda parameters: torch.optim.SGD(parameters, lr=RATE), passes=1, steps=2, **options):
    """The parameters, of which the last is used by the last rank alone, after some steps from 1."""
    parameters = [torch.nn.Parameter(torch.ones(3, 2, dtype=torch.float64)) for _ in range(3)]
    if callable(options.get("groups")):
        options["groups"] = options["groups"](parameters)
    named = [(f"parameter.{number}", each) for number, each in enumerate(parameters)]
    optimizer = hvd.DistributedOptimizer(make(parameters), named, backward_passes_per_step=passes, **options)
    for step in range(steps):
        optimizer.zero_grad()
        for number in range(passes):
            used = parameters if RANK == SIZE - 1 else parameters[:2]
            sum((each * factor(RANK, step + number) * (place + 1)).sum() for place, each in enumerate(used)).backward()
        optimizer.step()
    return [each.detach() for each in parameters]


def expected(op, passes=1, steps=2):
    """RATE times the reduced gradients of all steps away from 1: a rank without a gradient counts with zeros."""
    rounds = [step + number for step in range(steps) for number in range(passes)]
    gradients = sum(of_all(each) for each in rounds)
    last = gradients[-1] * 3
    divisor = SIZE if op == hvd.Average else 1
    sums = [gradients.sum(0), gradients.sum(0) * 2, last]
    return [1 - RATE * each / divisor for each in sums]


OPTIONS = (
    {},
    {"num_groups": 2},
    {"groups": 2},
    {"groups": lambda parameters: [parameters[:2]]},
    {"gradient_predivide_factor": 4.0},
    {"gradient_predivide_factor": 3.0, "num_groups": 1},
    {"sparse_as_dense": True},
)
for op in (hvd.Average, hvd.Sum):
    for passes in (1, 3):
        for options in OPTIONS:
            if op == hvd.Sum and "gradient_predivide_factor" in options:
                continue  # refused, as by Horovod
            for found, value in zip(trained(passes=passes, op=op, **options), expected(op, passes), strict=True):
                assert close(found, value), (op, passes, options)

own_set = [hvd.add_process_set([rank]) for rank in range(SIZE)][RANK] if SIZE > 1 else hvd.global_process_set
alone = [torch.nn.Parameter(torch.ones(3, 2, dtype=torch.float64))]
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(alone, lr=RATE), process_set=own_set)
(alone[0] * factor(RANK)).sum().backward()
optimizer.step()
assert close(alone[0].detach(), 1 - RATE * factor(RANK))


# By Adasum the steps of the ranks are combined, each parameter's by itself, short ones with weight 1.
if SIZE & (SIZE - 1) == 0:
    for rate in (RATE, 1e-8):
        for make in (
            lambda parameters, rate=rate: torch.optim.SGD(parameters, lr=rate),
            lambda parameters, rate=rate: torch.optim.Adam(parameters, lr=rate),
        ):
            found = trained(make, passes=2, steps=1, op=hvd.Adasum)
            for place, value in enumerate(found):
                steps = []
                for rank in range(SIZE):
                    parameter = torch.nn.Parameter(torch.ones(3, 2, dtype=torch.float64))
                    is_used = place < 2 or rank == SIZE - 1
                    parameter.grad = (factor(rank, 0) + factor(rank, 1)) * (place + 1) * is_used
                    make([parameter]).step()
                    steps.append(parameter.detach() - 1)
                assert close((value - 1) / rate, adasum(steps) / rate, 1e-6), (rate, place)

# Sparse gradients: the rows of all ranks; those that several have are added up, and Average divides by the ranks.
for op in (hvd.Average, hvd.Sum):
    for is_dense in (False, True):
        table = torch.nn.Embedding(SIZE + 2, 2, sparse=True).double()
        torch.nn.init.ones_(table.weight)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), RATE), op=op, sparse_as_dense=is_dense)
        table(torch.tensor([0, RANK + 1, RANK + 1])).sum().mul(RANK + 1).backward()
        optimizer.step()
        sums = torch.zeros(SIZE + 2, 1, dtype=torch.float64)
        for rank in range(SIZE):
            sums[0] += rank + 1
            sums[rank + 1] += 2 * (rank + 1)
        value = 1 - RATE * sums.expand(-1, 2) / (SIZE if op == hvd.Average else 1)
        assert close(table.weight.detach(), value), (op, is_dense)

# Compression: cast, reduced, cast back. On one host nothing is rounded. Between hosts each host's share is rounded once
# and the sum, which is formed in float32, once more at most; Horovod's sum is formed in half precision, too.
given = [torch.linspace(0.1, 3.3, 33, dtype=torch.float32) * (rank + 1) for rank in range(SIZE)]
half, context = hvd.Compression.fp16.compress(given[RANK])
assert torch.equal(half, given[RANK].half())
assert torch.equal(hvd.Compression.fp16.decompress(half, context), given[RANK].half().float())
assert hvd.Compression.fp16.compress(torch.arange(3))[0].dtype == torch.int64
for op, divisor in ((hvd.Sum, 1), (hvd.Average, SIZE)):
    found = hvd.allreduce(given[RANK], compression=hvd.Compression.fp16, op=op)
    assert found.dtype == torch.float32
    if ONE_HOST:
        assert torch.allclose(found, torch.stack(given).sum(0) / divisor, rtol=1e-6, atol=0)
    else:
        halves = torch.stack([each.half().float() for each in given]).sum(0) / divisor  # each rank is a host
        assert torch.allclose(found, halves, rtol=2**-11, atol=0)

# Samples: each rank takes every SIZE-th of those that are left, which are filled up from their beginning.
for length in (4 * SIZE, 4 * SIZE + 1):
    for is_shuffled in (False, True):
        sampler = hvd.elastic.ElasticSampler(list(range(length)), shuffle=is_shuffled, seed=5)
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            order = list(sampler.remaining_indices)
            if not is_shuffled:
                assert order == list(range(length))
            assert sorted(order) == list(range(length))
            count = math.ceil(length / SIZE)
            filled = order + order[: count * SIZE - length]
            assert len(sampler) == sampler.num_samples == count
            assert list(sampler) == filled[RANK : count * SIZE : SIZE]
            sampler.record_batch(0, 2)
            assert sampler.processed_num == 2 * SIZE
            assert sampler.state_dict() == {"epoch": epoch, "processed_num": 2 * SIZE}
            sampler.load_state_dict(sampler.state_dict())
            assert list(sampler.remaining_indices) == order[2 * SIZE :]
print("all as computed")
