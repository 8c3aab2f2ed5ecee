"""Outer steps: the time of a training step over a slow link, if hosts exchange what they have learned now and then."""

from __future__ import annotations

from benchmarks.hosts.wire import meet
from benchmarks.step import BATCH, Size, Training, model_of, train_alone, training_of
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Rounds, Summary, slowest, summary, timed
from benchmarks.support.ranks import SIZE, Rank, run

MODEL, QUICK = Size(24, 2048, Rounds(3)), Size(8, 512, Rounds(3))
"""The first has 100 million parameters."""
ALONE, TOGETHER, LOCAL_SGD, DILOCO, WAITING = "alone", "every step", "local SGD", "DiLoCo", "DiLoCo, no overlap"
EVERY = 50


def compare(rank: Rank) -> Comparison:
    """Compare the times of a step, on the average of whole rounds."""
    model = QUICK if rank.quick else MODEL
    comparison = Comparison(
        f"training step, {model.layers} x Linear({model.width}), batch {BATCH}, SGD, one thread, {SIZE} hosts, one "
        "rank each",
        "parameters",
        [ALONE, TOGETHER, LOCAL_SGD, DILOCO, WAITING],
        [(ALONE, TOGETHER), (ALONE, LOCAL_SGD), (ALONE, DILOCO), (ALONE, WAITING)],
        notes=[
            f"{ALONE}: each rank for itself, at the same time; {TOGETHER}: DistributedOptimizer, float32; {LOCAL_SGD}: "
            f"LocalSGD(every={EVERY}), float32; {DILOCO}: DiLoCo(every={EVERY}), so with 4 fragments, int4 and "
            f"overlap. The mean of {EVERY} steps ({TOGETHER}: of 4), in {model.rounds.count} turns. Ratios are the "
            "share of the throughput alone."
        ],
    )
    trainings = {
        ALONE: (train_alone(rank, model), EVERY),
        TOGETHER: (_trained(rank, model, "DistributedOptimizer"), 4),
        LOCAL_SGD: (_trained(rank, model, "LocalSGD", every=EVERY), EVERY),
        DILOCO: (_trained(rank, model, "DiLoCo", every=EVERY), EVERY),
        WAITING: (_trained(rank, model, "DiLoCo", every=EVERY, overlap=False), EVERY),
    }
    results = {name: _measure(rank, model, *each) for name, each in trainings.items()}
    comparison.add(f"{model.layers * model.width * (model.width + 1) / 1e6:.1f} million", results)
    return comparison


def _trained(rank: Rank, size: Size, wrapper: str, **options: object) -> Training:
    import torch

    import distrun.torch as dt

    model = model_of(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    return training_of(rank, size, model, getattr(dt, wrapper)(optimizer, model.named_parameters(), **options))


def _measure(rank: Rank, size: Size, training: Training, steps: int) -> Summary:
    """Return the mean time of so many steps, of which each turn begins on all ranks together."""
    import distrun

    def block() -> None:
        for _ in range(steps):
            training.step()

    for _ in range(3):
        training.step()
    spans = [timed(block, rank.together) for _ in range(size.rounds.count)]
    return summary([seconds / steps for seconds in slowest(distrun.allgather_object(spans))])


if __name__ == "__main__":
    run(meet, compare)
