"""The backend of torch.distributed: DDP, FSDP and all_reduce on distrun beside the same on gloo."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.step import BATCH, SIZES, Size, Training, at_once, minus, model_of, train_alone, training_of
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Rounds, Span, Summary, slowest, summary, timed
from benchmarks.support.ranks import SIZE, Rank, run

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

ALONE, GLOO, DISTRUN = "alone", "gloo", "distrun"
REDUCTIONS = {
    "4 KB": (4_000, Rounds(200, turn=10)),
    "1 MB": (1_000_000, Rounds(60, turn=5)),
    "100 MB": (100_000_000, Rounds(8, turn=2)),
}
"""The bytes of arrays, and the rounds for them."""

Groups = Mapping[str, "ProcessGroup"]


def compare(rank: Rank) -> Comparison:
    """Compare steps and reductions in process groups of both backends."""
    import torch.distributed as dist

    import distrun

    groups = {GLOO: dist.new_group(backend="gloo"), DISTRUN: dist.group.WORLD}
    hosts = distrun.topology().cross_size
    comparison = Comparison(
        f"torch.distributed, {SIZE} ranks on {hosts} host{'s' if hosts > 1 else ''}, one thread",
        "operation",
        [ALONE, GLOO, DISTRUN],
        [(DISTRUN, GLOO)],
        notes=[
            f"DDP and FSDP: what they add to a step, batch {BATCH}, SGD, of each rank for itself, which is under "
            f"{ALONE}. DDP has gradient_as_bucket_view=True; FSDP is fully_shard of each layer and of the model.",
        ],
    )
    for size in SIZES:
        model = f"{size.layers} x Linear({size.width})"
        for name, train in (("DDP", _by_ddp), ("FSDP", _by_fsdp)):
            trainings = {backend: train(rank, size, group) for backend, group in groups.items()}
            comparison.add(f"{name}, {model}", _added(rank, {ALONE: train_alone(rank, size), **trainings}, size.rounds))
    for title, (count, rounds) in REDUCTIONS.items():
        comparison.add(f"all_reduce {title}", _reductions(rank, groups, count, rounds))
    return comparison


def _by_ddp(rank: Rank, size: Size, group: ProcessGroup) -> Training:
    import torch

    model = torch.nn.parallel.DistributedDataParallel(model_of(size), process_group=group, gradient_as_bucket_view=True)
    return training_of(rank, size, model, _sgd(model))


def _by_fsdp(rank: Rank, size: Size, group: ProcessGroup) -> Training:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = model_of(size), DeviceMesh.from_group(group, "cpu")
    for layer in (*[part for part in model if list(part.parameters())], model):
        fully_shard(layer, mesh=mesh)
    return training_of(rank, size, model, _sgd(model))


def _sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.001)


def _added(rank: Rank, trainings: Mapping[str, Training], rounds: Rounds) -> dict[str, Summary]:
    """Measure blocks of steps by turns; return what each training adds to the step alone, and that."""
    import distrun

    rounds = rounds.shortened() if rank.quick else rounds
    spans: dict[str, list[Span]] = {name: [] for name in trainings}
    for training in trainings.values():
        for _ in range(rounds.warmup):
            training.step()
    for _ in range(rounds.count):
        for name, training in trainings.items():
            timed(training.step, rank.together)
            spans[name] += [timed(training.step, at_once) for _ in range(rounds.turn)]
    steps = {name: summary(slowest(distrun.allgather_object(spans[name]))) for name in trainings}
    return {name: step if name == ALONE else minus(step, steps[ALONE]) for name, step in steps.items()}


def _reductions(rank: Rank, groups: Groups, count: int, rounds: Rounds) -> dict[str, Summary]:
    """Measure all_reduce of an array of so many bytes, which is checked once."""
    import torch
    import torch.distributed as dist

    programs = {}
    for name, group in groups.items():
        values = torch.full((count // 4,), float(rank.rank))
        dist.all_reduce(values, group=group)
        if values.min() != sum(range(SIZE)) or values.max() != sum(range(SIZE)):
            raise SystemExit(f"{name}: all_reduce of {count} bytes has not given the sum")
        programs[name] = partial(dist.all_reduce, values.zero_(), group=group)
    return rank.compare(programs, rounds)


def _meet(quick: bool) -> Rank:
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    import distrun

    distrun.init()
    torch.set_num_threads(1)
    dist.init_process_group("distrun", init_method="distrun://")
    if dist.get_world_size() != SIZE:
        raise SystemExit(f"there are {dist.get_world_size()} ranks, not {SIZE}: start me with python -m benchmarks")
    return Rank(distrun.rank(), MPI.COMM_WORLD, quick)


if __name__ == "__main__":
    run(_meet, compare)
