"""Training in numbers: the steps of optimizers by the ranks, and by Horovod's formulas."""

import horovod.torch as hvd
import torch
from horovods_formulas import adasum

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
RATE = 0.5


def factor(rank, step=0):
    """A rank's gradient, when the loss is this times a parameter."""
    return torch.arange(6, dtype=torch.float64).reshape(3, 2) + 1 + 10 * rank + 100 * step


def of_all(step=0):
    return torch.stack([factor(rank, step) for rank in range(SIZE)])


def close(found, expected, tolerance=1e-9):
    return found.shape == expected.shape and torch.allclose(found.double(), expected.double(), tolerance, tolerance)


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

print("all as computed")
