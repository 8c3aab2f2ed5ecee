"""Tensors that are divided over device meshes, functional collectives and pipelines, on gloo and on distrun."""

from __future__ import annotations

import torch
from comparing import RANK, SIZE, batches, compare_all, run
from models import mlp, train
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def whole(model):
    return [value.full_tensor() if isinstance(value, DTensor) else value for value in model.state_dict().values()]


def in_parallel(model, mesh):
    return parallelize_module(
        model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel(output_layouts=Replicate())}
    )


def same_batches(model):
    """Train on batches that are the same on all ranks."""
    return train(model, sgd(model), batches(4, rank=0)), whole(model)


def tensor_parallel():
    return same_batches(in_parallel(mlp(), dist.init_device_mesh("cpu", (SIZE,))))


def two_dimensions():
    mesh = dist.init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("data", "tensor"))
    model = in_parallel(mlp(), mesh["tensor"])
    fully_shard(model, mesh=mesh["data"])
    return run(model, sgd(model)), whole(model)


def redistributed():
    mesh = dist.init_device_mesh("cpu", (SIZE,))
    values = torch.arange(24.0 * SIZE).reshape(4 * SIZE, 6)
    by_rows = distribute_tensor(values, mesh, [Shard(0)])
    by_columns = by_rows.redistribute(placements=[Shard(1)])
    uneven = distribute_tensor(torch.arange(7.0), mesh, [Shard(0)])
    return (
        by_columns.to_local(),
        (by_rows @ by_columns.T).full_tensor(),
        uneven.full_tensor(),
        uneven.sum().full_tensor(),
    )


def collectives(values):
    world = dist.group.WORLD
    summed = functional.all_reduce(values, "sum", world)
    gathered = functional.all_gather_tensor(values * 2, 0, world)
    scattered = functional.reduce_scatter_tensor(gathered, "avg", 0, world)
    turned = functional.all_to_all_single(gathered, None, None, world)
    sent = functional.broadcast(values + 1, 0, world)
    return summed + scattered, turned, sent


def compiled(backend):
    def train():
        values = torch.arange(8.0) * (RANK + 1)
        torch._dynamo.reset()
        return torch.compile(collectives, backend=backend, fullgraph=True)(values), collectives(values)

    return train


def compiled_ddp():
    torch._dynamo.reset()
    model = torch.nn.parallel.DistributedDataParallel(mlp())
    return run(torch.compile(model, backend="aot_eager"), sgd(model)), whole(model)


def pipeline(schedule):
    def train():
        layers = list(mlp())
        cuts = [len(layers) * place // SIZE for place in range(SIZE + 1)]
        part = torch.nn.Sequential(*layers[cuts[RANK] : cuts[RANK + 1]])
        stage = PipelineStage(part, RANK, SIZE, torch.device("cpu"))
        steps = schedule(stage, n_microbatches=4, loss_fn=torch.nn.functional.cross_entropy)
        losses, optimizer = [], sgd(part) if list(part.parameters()) else None
        for inputs, targets in batches(3, rank=0):
            found = []
            steps.step(
                *([inputs] if RANK == 0 else []), **({"target": targets, "losses": found} if RANK == SIZE - 1 else {})
            )
            losses += [loss.item() for loss in found]
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
        return losses, whole(part)

    return train


VARIANTS = {
    "tensor parallel": tensor_parallel,
    "redistributed": redistributed,
    "functional collectives": compiled("eager"),
    "compiled collectives": compiled("aot_eager"),
    "collectives by inductor": compiled("inductor"),
    "compiled DDP": compiled_ddp,
    "pipeline GPipe": pipeline(ScheduleGPipe),
    "pipeline 1F1B": pipeline(Schedule1F1B),
}
if SIZE % 2 == 0 and SIZE > 2:
    VARIANTS["two dimensions"] = two_dimensions

compare_all(VARIANTS, lambda name: SIZE == 2)
