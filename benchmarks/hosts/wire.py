"""Wire: what data parallelism adds to a training step over a slow link, with gradients as they are and compressed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.step import BATCH, Size, Training, at_once, minus, model_of, train_alone, training_of
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Rounds, Span, Summary, slowest, summary, timed
from benchmarks.support.ranks import SIZE, Rank, run

if TYPE_CHECKING:
    import torch

MODEL = Size(6, 2048, Rounds(5, turn=3, warmup=1))
ALONE, GLOO, GLOO_BF16 = "alone", "DDP", "DDP, bf16 hook"
COMPRESSIONS = ("none", "bf16", "int8", "int4")
"""The names of `distrun.Compression` that are compared."""


def compare(rank: Rank) -> Comparison:
    """Compare what the trainings add to a step."""
    import torch.distributed as dist

    group = dist.new_group(backend="gloo")
    trainings = {
        ALONE: train_alone(rank, MODEL),
        GLOO: _ddp(rank, group),
        GLOO_BF16: _ddp(rank, group, bf16=True),
        **{f"distrun {name}": _distrun(rank, name) for name in COMPRESSIONS},
    }
    comparison = Comparison(
        f"what a training step takes longer between hosts, {MODEL.layers} x Linear({MODEL.width}), float32, "
        f"{SIZE} hosts, one rank each",
        "parameters",
        list(trainings),
        [(GLOO, "distrun none"), *((GLOO_BF16, f"distrun {name}") for name in COMPRESSIONS[1:])],
        notes=[
            f"{ALONE}: a step of each rank for itself, batch {BATCH}, SGD, one thread; the others: what they add. "
            f"{GLOO}: over gloo, gradient_as_bucket_view=True; {GLOO_BF16}: with torch's bf16_compress_hook; distrun: "
            "DistributedOptimizer with that member of distrun.Compression."
        ],
    )
    comparison.add(f"{MODEL.layers * MODEL.width * (MODEL.width + 1) / 1e6:.1f} million", _added(rank, trainings))
    return comparison


def _ddp(rank: Rank, group: Any, bf16: bool = False) -> Training:
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    model = torch.nn.parallel.DistributedDataParallel(
        model_of(MODEL), process_group=group, gradient_as_bucket_view=True
    )
    if bf16:
        # By another name: torch refuses it by its own without NCCL, though gloo adds bfloat16 up.
        model.register_comm_hook(group, lambda state, bucket: bf16_compress_hook(state, bucket))
    return training_of(rank, MODEL, model, _sgd(model))


def _distrun(rank: Rank, compression: str) -> Training:
    import distrun.torch as dt

    model = model_of(MODEL)
    optimizer = dt.DistributedOptimizer(
        _sgd(model), named_parameters=model.named_parameters(), compression=getattr(dt.Compression, compression)
    )
    return training_of(rank, MODEL, model, optimizer)


def _sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.001)


def _added(rank: Rank, trainings: dict[str, Training]) -> dict[str, Summary]:
    """Measure blocks of steps by turns; return what each training adds to the step alone, and that."""
    import distrun

    rounds = MODEL.rounds.shortened() if rank.quick else MODEL.rounds
    spans: dict[str, list[Span]] = {name: [] for name in trainings}
    for _ in range(rounds.count):
        for name, training in trainings.items():
            timed(training.step, rank.together)
            spans[name] += [timed(training.step, at_once) for _ in range(rounds.turn)]
    steps = {name: summary(slowest(distrun.allgather_object(spans[name]))) for name in trainings}
    return {name: step if name == ALONE else minus(step, steps[ALONE]) for name, step in steps.items()}


def meet(quick: bool) -> Rank:
    """Connect this rank with the other by distrun, gloo and MPI."""
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    import distrun

    distrun.init()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=distrun.rank(), world_size=distrun.size())
    return Rank(distrun.rank(), MPI.COMM_WORLD, quick)


if __name__ == "__main__":
    run(meet, compare)
