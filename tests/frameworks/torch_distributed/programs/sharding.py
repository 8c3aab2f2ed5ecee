"""Parameters, gradients and optimizer states that are divided among the ranks, on gloo and on distrun."""

from __future__ import annotations

import warnings

import torch
from comparing import FOLDER, RANK, SIZE, batches, compare_all, run, weights
from models import mlp
from torch import distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

warnings.filterwarnings("ignore", category=FutureWarning)
CPU = torch.device("cpu")


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def fsdp1(strategy=ShardingStrategy.FULL_SHARD, **options):
    model = FullyShardedDataParallel(
        mlp(),
        sharding_strategy=strategy,
        auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
        device_id=CPU,
        use_orig_params=True,
        **options,
    )
    losses = run(model, adam(model))
    model.clip_grad_norm_(1.0)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        return losses, list(model.state_dict().values())


def hybrid():
    """Each rank has all of the parameters, and the ranks add up their gradients as replicas do."""
    model = sharded(dist.init_device_mesh("cpu", (SIZE, 1), mesh_dim_names=("replicate", "shard")))
    return run(model, adam(model)), [value.full_tensor() for value in model.state_dict().values()]


def sharded(mesh):
    model = mlp()
    for layer in (*model[::2], model):
        fully_shard(layer, mesh=mesh)
    return model


def fsdp2():
    model = sharded(dist.init_device_mesh("cpu", (SIZE,)))
    optimizer = adam(model)
    losses = run(model, optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    model.set_requires_gradient_sync(False)
    inputs, targets = next(iter(batches(1)))
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    model.set_requires_gradient_sync(True)
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    return losses, norm.full_tensor(), [value.full_tensor() for value in model.state_dict().values()]


def zero():
    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    losses = run(model, optimizer)
    optimizer.consolidate_state_dict(to=0)
    state = optimizer.state_dict()["state"] if RANK == 0 else {}
    return losses, weights(model), [entry["exp_avg"] for entry in state.values()]


def checkpointed():
    """Saves, trains on, loads, trains on: both times the same."""
    model = sharded(dist.init_device_mesh("cpu", (SIZE,)))
    optimizer = adam(model)
    run(model, optimizer)
    folder = FOLDER / f"checkpoint.{dist.get_backend()}.{dist.get_world_size()}"
    found = []
    for save in (checkpoint.save, checkpoint.async_save):
        state, states = get_state_dict(model, optimizer)
        saved = save({"model": state, "optimizer": states}, checkpoint_id=folder / save.__name__)
        if save is checkpoint.async_save:
            saved.result()
        before = run(model, optimizer)
        state, states = get_state_dict(model, optimizer)
        checkpoint.load({"model": state, "optimizer": states}, checkpoint_id=folder / save.__name__)
        set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=states)
        assert run(model, optimizer) == before
        found.append(before)
    return found


VARIANTS = {
    "FSDP1": fsdp1,
    "FSDP1, gradients and states": lambda: fsdp1(ShardingStrategy.SHARD_GRAD_OP),
    "FSDP1, nothing": lambda: fsdp1(ShardingStrategy.NO_SHARD),
    "FSDP1, mixed precision": lambda: fsdp1(mixed_precision=MixedPrecision(reduce_dtype=torch.float64)),
    "FSDP2": fsdp2,
    "FSDP2, replicas": hybrid,
    "ZeRO": zero,
    "checkpoints": checkpointed,
}

compare_all(VARIANTS, lambda name: SIZE == 2)
