"""DistributedDataParallel in its variants, on gloo and on distrun."""

from __future__ import annotations

import torch
from comparing import RANK, SIZE, batches, compare_all, run, weights
from models import mlp
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    optimizer_overlap_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.optim.utils import as_functional_optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

TINY = 1e-3  # megabytes of a bucket: several buckets for a small model


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def trained(model, **options):
    wrapped = DistributedDataParallel(model, **options)
    return run(wrapped, sgd(wrapped)), weights(model)


class TwoHeads(torch.nn.Module):
    """Each batch uses one of two heads, another one on each rank; and neither uses the spare layer."""

    def __init__(self):
        super().__init__()
        self.body, self.heads = mlp(classes=8), torch.nn.ModuleList(torch.nn.Linear(8, 4) for _ in range(2))
        self.spare = torch.nn.Linear(8, 4)
        self.calls = RANK

    def forward(self, inputs):
        self.calls += 1
        return self.heads[self.calls % 2](self.body(inputs))


def with_batch_norm():
    model = mlp()
    return torch.nn.Sequential(model[0], torch.nn.BatchNorm1d(32), *model[1:])


class InHalfPrecision(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp().to(torch.bfloat16)

    def forward(self, inputs):
        return self.inner(inputs.to(torch.bfloat16)).float()


class Checkpointed(torch.nn.Module):
    """Computes its activations once more in the backward, in a backward of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = mlp(classes=8), mlp(8)

    def forward(self, inputs):
        inputs.requires_grad_()
        middle = checkpoint(self.first, inputs, use_reentrant=True)
        return checkpoint(self.second, middle, use_reentrant=True)


class Unlucky(torch.autograd.Function):
    """Fails in its backward."""

    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        raise ArithmeticError("no luck")


def after_a_backward_that_failed():
    """Some buckets are on their way when a backward fails. A wait for their futures gets them all the same."""
    layers = mlp()
    futures = []

    def hook(state, bucket):
        futures.append(default_hooks.allreduce_hook(state, bucket))
        return futures[-1]

    model = DistributedDataParallel(layers, bucket_cap_mb=TINY)
    model.register_comm_hook(None, hook)
    inputs, targets = next(batches(1))
    middle = Unlucky.apply(layers[0](inputs))
    model(inputs)  # which prepares the reducer
    loss = torch.nn.functional.cross_entropy(layers[1:](middle), targets)
    try:
        loss.backward()
    except ArithmeticError:
        return [future.wait() for future in futures], trained(mlp(), bucket_cap_mb=TINY)
    raise AssertionError("the backward has not failed")


def without_sync():
    model = DistributedDataParallel(mlp(), bucket_cap_mb=TINY)
    optimizer = sgd(model)
    for number, (inputs, targets) in enumerate(batches(6)):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        if number % 3 < 2:
            with model.no_sync():
                loss = torch.nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()
        else:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


def hooked(hook, state=None, **options):
    model = DistributedDataParallel(mlp(), **{"bucket_cap_mb": TINY, **options})
    model.register_comm_hook(state() if callable(state) else state, hook)
    return run(model, sgd(model), 6), weights(model)


def own_hook(state, bucket):
    """Halves, adds up, and doubles, by two callbacks in a row."""
    future = dist.all_reduce(bucket.buffer().div_(2 * SIZE), async_op=True).get_future()
    return future.then(lambda done: done.value()[0].mul_(4)).then(lambda done: done.value().div_(2))


def power_sgd(**options):
    return lambda: powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5, **options)


def joined(model=mlp, divide_by_all=True, **options):
    model = DistributedDataParallel(model(), **options)
    optimizer = sgd(model)
    count = 0
    with model.join(divide_by_initial_world_size=divide_by_all):
        for inputs, targets in batches(3 + 2 * RANK):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            count += 1
    assert count == 3 + 2 * RANK
    return weights(model)


def joined_with_zero():
    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    with Join([model, optimizer]):
        for inputs, targets in batches(3 + RANK):
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            model.zero_grad()
    return weights(model)


def local_sgd():
    model = DistributedDataParallel(mlp())
    state = post_localSGD_hook.PostLocalSGDState(None, dist.new_group([RANK]), start_localSGD_iter=2)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    averager = PeriodicModelAverager(period=2, warmup_steps=2)
    return run(model, PostLocalSGDOptimizer(sgd(model), averager), 8), weights(model)


def overlapping_optimizer():
    model = DistributedDataParallel(mlp())
    state = optimizer_overlap_hooks._OptimizerHookState(as_functional_optim(torch.optim.SGD, lr=0.1))
    model.register_comm_hook(None, optimizer_overlap_hooks._hook_then_optimizer(default_hooks.allreduce_hook, state))
    losses = []
    for inputs, targets in batches(4):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        model.zero_grad()
        losses.append(loss.item())
    return losses, weights(model)


VARIANTS = {
    "plain": lambda: trained(mlp()),
    "small buckets": lambda: trained(mlp(), bucket_cap_mb=TINY),
    "unused parameters": lambda: trained(TwoHeads(), find_unused_parameters=True),
    "static graph": lambda: trained(mlp(), static_graph=True, bucket_cap_mb=TINY),
    "bucket views": lambda: trained(mlp(), gradient_as_bucket_view=True, bucket_cap_mb=TINY),
    "buffers": lambda: trained(with_batch_norm()),
    "half precision": lambda: trained(InHalfPrecision()),
    "checkpointed": lambda: trained(Checkpointed(), static_graph=True, bucket_cap_mb=TINY),
    "a failed backward": after_a_backward_that_failed,
    "no_sync": without_sync,
    "hook allreduce": lambda: hooked(default_hooks.allreduce_hook),
    "hook fp16": lambda: hooked(default_hooks.fp16_compress_hook),
    "hook of our own": lambda: hooked(own_hook),
    "hook noop": lambda: hooked(debugging_hooks.noop_hook),
    "powerSGD": lambda: hooked(powerSGD_hook.powerSGD_hook, power_sgd(matrix_approximation_rank=2), bucket_cap_mb=25),
    "join": joined,
    "join that divides by those left": lambda: joined(divide_by_all=False),
    "join with unused parameters": lambda: joined(TwoHeads, find_unused_parameters=True),
    "Join with ZeRO": joined_with_zero,
    "local SGD": local_sgd,
    "overlapping optimizer": overlapping_optimizer,
}

compare_all(VARIANTS, lambda name: SIZE == 2 and "half" not in name)
