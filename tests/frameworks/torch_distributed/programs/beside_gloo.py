"""Trains and communicates on gloo and on distrun in one world, under any launcher, and compares what comes out.

beside_gloo.py GROUP      GROUP: the arguments of init_process_group, as JSON; it must make a group on distrun
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from models import batches, mlp, train
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

Group = dist.ProcessGroup


def losses_of(model: torch.nn.Module) -> list[float]:
    """Train on batches of this rank; return the losses."""
    return train(model, torch.optim.Adam(model.parameters(), lr=0.01), batches(4, RANK))


def ddp(group: Group) -> Any:
    model = DistributedDataParallel(mlp(), process_group=group)
    return losses_of(model), [value.detach() for value in model.parameters()]


def fsdp(group: Group) -> Any:
    model, mesh = mlp(), DeviceMesh.from_group(group, "cpu")
    for part in (*model[::2], model):
        fully_shard(part, mesh=mesh)
    return losses_of(model), [value.full_tensor() for value in model.state_dict().values()]


def dtensors(group: Group) -> Any:
    mesh = DeviceMesh.from_group(group, "cpu")
    whole = torch.arange(8.0 * SIZE).view(2 * SIZE, 4)
    rows, columns = (distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in (whole, whole.t().contiguous()))
    product = rows @ columns.redistribute(mesh, [Replicate()])
    return product.full_tensor(), rows.redistribute(mesh, [Shard(1)]).to_local(), rows.sum().full_tensor()


def collectives(group: Group) -> Any:
    mine = torch.arange(3.0 * SIZE) + RANK
    total, gathered, part, swapped = mine.clone(), torch.empty(3 * SIZE * SIZE), torch.empty(3), torch.empty_like(mine)
    dist.all_reduce(total, group=group)
    works = [
        dist.all_gather_into_tensor(gathered, mine, group=group, async_op=True),
        dist.reduce_scatter_tensor(part, mine, group=group, async_op=True),
        dist.all_to_all_single(swapped, mine, group=group, async_op=True),
        dist.broadcast(copied := mine.clone(), SIZE - 1, group=group, async_op=True),
    ]
    for work in works:
        work.wait()
    objects = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK}, group=group)
    assert objects == [{"rank": rank} for rank in range(SIZE)]
    large = torch.full((300_000,), float(RANK))
    dist.all_reduce(large, dist.ReduceOp.MAX, group=group)
    return total, gathered, part, swapped, copied, large


def messages(group: Group) -> Any:
    """Each rank sends to all others; what has no tag of its own may come from anybody."""
    others = [rank for rank in range(SIZE) if rank != RANK]
    received = {rank: torch.empty(5) for rank in others}
    works = [dist.isend(torch.full((5,), float(RANK)), rank, group=group, tag=1) for rank in others]
    works += [dist.irecv(received[rank], rank, group=group, tag=1) for rank in others]
    for work in works:
        work.wait()
    works = [dist.isend(torch.full((100_000,), float(RANK)), rank, group=group, tag=2) for rank in others]
    found = {}
    for _ in others:
        source = dist.recv(large := torch.empty(100_000), group=group, tag=2)
        found[source] = large
    for work in works:
        work.wait()
    return list(received.values()), [found[rank] for rank in others]


def compare(name: str, program: Callable[[Group], Any]) -> None:
    ours, gloos = program(OURS), program(GLOO)
    tolerance = 0 if SIZE == 2 else 1e-5  # of more ranks than two, sums depend on the order
    torch.testing.assert_close(
        ours, gloos, rtol=tolerance, atol=tolerance, msg=lambda text: f"{name}: {text}\n{ours}\n{gloos}"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group(**json.loads(sys.argv[1]))
    RANK, SIZE = dist.get_rank(), dist.get_world_size()
    OURS = dist.group.WORLD
    assert dist.get_backend(OURS) == "distrun"
    # --torch-backend would give distrun here too, by a function that wraps torch's.
    GLOO = getattr(dist.new_group, "__wrapped__", dist.new_group)(backend="gloo")
    assert dist.get_backend(GLOO) == "gloo"
    for program in (ddp, fsdp, dtensors, collectives, messages):
        compare(program.__name__, program)
    os.write(1, f"EQUAL {RANK} {SIZE} {os.uname().nodename}\n".encode())
    dist.barrier()
    dist.destroy_process_group(GLOO)
    dist.destroy_process_group()
    if "mpi4py.MPI" in sys.modules:  # else Open MPI takes the end for a crash
        sys.modules["mpi4py.MPI"].Finalize()
    sys.stdout.flush()
    os._exit(0)  # gloo may abort at the interpreter's end
