"""Autotune: jobs that tune themselves, and afterwards what was chosen beside the default, by turns."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from benchmarks.step import SIZES, Size, Training, at_once, model_of, training_of
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Rounds, Span, Summary, slowest, summary, timed
from benchmarks.support.ranks import SIZE, Rank, main

DEFAULT, TUNED = "default", "tuned"
STEPS = 75
"""Steps after which any tuning has ended."""
MANY = ((500, 64 << 10), (500, 4 << 10), (100, 200 << 10))
"""Numbers of operations, and their bytes."""
ROUNDS = Rounds(20, turn=6, warmup=3)


def compare(rank: Rank) -> Comparison:
    """Tune, and compare."""
    comparison = Comparison(
        f"a step with the default and with what autotuning has chosen, {SIZE} ranks",
        "job",
        [DEFAULT, TUNED],
        [(TUNED, DEFAULT)],
        notes=["Operations are allreduces of numpy arrays, started one by one. Models are those of the training step."],
    )
    for count, nbytes in MANY:
        comparison.add(f"{count} operations of {nbytes >> 10} KiB", _operations(rank, comparison, count, nbytes))
    for size in SIZES:
        name = f"{size.layers} x Linear({size.width})"
        trainings = {DEFAULT: _training(rank, size, False), TUNED: _training(rank, size, True)}
        for _ in range(STEPS):
            trainings[TUNED].step()
        _note(comparison, name)
        comparison.add(name, _measure(rank, {each: training.step for each, training in trainings.items()}))
    return comparison


def _note(comparison: Comparison, name: str) -> None:
    import distrun

    comparison.notes.append(f"{name}: {distrun.broadcast_object(_last(), 0)}.")


def _last() -> str:
    import distrun

    told = distrun.autotuned()
    return f"{told[-1]}, after {told[-1].steps} steps" if told else "nothing was tuned"


def _operations(rank: Rank, comparison: Comparison, count: int, nbytes: int) -> dict[str, Summary]:
    """Tune the fusion threshold in a world of its own, and compare what was chosen with the default."""
    import distrun
    from distrun.runtime.world import world

    distrun.shutdown()
    os.environ["DISTRUN_AUTOTUNE"] = "1"
    distrun.init()
    before = len(distrun.autotuned())
    arrays = [np.zeros(nbytes // 4, np.float32) for _ in range(count)]

    def step() -> None:
        handles = [distrun.allreduce_async_(each, f"t{n}", distrun.Sum) for n, each in enumerate(arrays)]
        for handle in handles:
            handle.wait()

    for _ in range(STEPS):
        step()
    name = f"{count} operations of {nbytes >> 10} KiB"
    has_tuned = distrun.broadcast_object(len(distrun.autotuned()) > before, 0)
    if has_tuned:
        _note(comparison, name)
    else:
        comparison.notes.append(f"{name}: there was nothing to choose from.")
    operations = world.engine()._operations  # type: ignore[union-attr]
    thresholds = {DEFAULT: 64 << 20, TUNED: operations._threshold}

    def stepping(threshold: int) -> Callable[[], None]:
        def retuned() -> None:
            operations.retune(threshold)  # nothing is under way on this rank
            step()

        return retuned

    results = _measure(rank, {name: stepping(threshold) for name, threshold in thresholds.items()})
    distrun.shutdown()
    os.environ["DISTRUN_AUTOTUNE"] = "0"
    distrun.init()
    return results


def _training(rank: Rank, size: Size, tunes: bool) -> Training:
    import torch

    import distrun.torch

    os.environ["DISTRUN_AUTOTUNE"] = str(int(tunes))
    model = model_of(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer = distrun.torch.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    os.environ["DISTRUN_AUTOTUNE"] = "0"
    return training_of(rank, size, model, optimizer)


def _measure(rank: Rank, steps: dict[str, Callable[[], None]]) -> dict[str, Summary]:
    """Measure blocks of steps by turns; the first of each does not count."""
    import distrun

    rounds = ROUNDS.shortened() if rank.quick else ROUNDS
    spans: dict[str, list[Span]] = {name: [] for name in steps}
    for _ in range(rounds.count):
        for name, step in steps.items():
            timed(step, rank.together)
            spans[name] += [timed(step, at_once) for _ in range(rounds.turn)]
    return {name: summary(slowest(distrun.allgather_object(spans[name]))) for name in steps}


if __name__ == "__main__":
    main(compare)
