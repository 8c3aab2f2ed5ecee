"""An optimizer whose steps are combined by Adasum, against the published formula."""

import numpy as np
import torch
from expecting import raises

import distrun.torch as hvd


def formula(a, b):
    return (1 - a @ b / (2 * (a @ a))) * a + (1 - a @ b / (2 * (b @ b))) * b


def combined(steps):
    while len(steps) > 1:
        pairs = [formula(*steps[at : at + 2]) for at in range(0, len(steps) - 1, 2)]
        steps = [*pairs, *steps[2 * len(pairs) :]]
    return steps[0]


def trained(rank, weights, steps, make):
    """The parameters after some steps of one rank alone, and where it would go from each of `weights`."""
    parameter = torch.nn.Parameter(weights.clone())
    optimizer = make([parameter])
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(parameter, rank, step).backward()
        optimizer.step()
    return parameter.detach()


def loss_of(parameter, rank, step):
    target = torch.from_numpy(np.random.default_rng([rank, step]).normal(size=parameter.shape)).to(parameter.dtype)
    return ((parameter - target) ** 2).sum()


hvd.init()
for make in (lambda ps: torch.optim.SGD(ps, lr=0.1), lambda ps: torch.optim.Adam(ps, lr=0.1)):
    start = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = hvd.DistributedOptimizer(make([parameter]), [("weights", parameter)], op=hvd.Adasum)
    loss_of(parameter, hvd.rank(), 0).backward()
    optimizer.step()
    alone = [(trained(rank, start, 1, make) - start).reshape(-1).numpy() for rank in range(hvd.size())]
    expected = start.reshape(-1).numpy() + combined(alone)
    assert np.allclose(parameter.detach().reshape(-1).numpy(), expected), (parameter, expected)
    for step in range(1, 4):  # all ranks stay together
        optimizer.zero_grad()
        loss_of(parameter, hvd.rank(), step).backward()
        optimizer.step()
    mine, *others = hvd.allgather_object(parameter.detach().tolist())
    assert all(other == mine for other in others)
    with raises(ValueError, "has no meaning with op=Adasum"):
        optimizer.skip_synchronize()
