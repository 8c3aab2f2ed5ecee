"""Step: what data parallelism adds to a training step, with torch's DDP and with distrun.torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Rounds, Span, Summary, slowest, summary, timed
from benchmarks.support.ranks import SIZE, Rank, main

if TYPE_CHECKING:
    import torch

BATCH = 32
ALONE, DDP, DISTRUN = "alone", "DDP", "distrun"
DDP_ADDS, DISTRUN_ADDS = "DDP adds", "distrun adds"


@dataclass(frozen=True)
class Size:
    """A multilayer perceptron, and how many blocks of how many steps it is trained for."""

    layers: int
    width: int
    rounds: Rounds


SIZES = (Size(60, 128, Rounds(24, turn=10, warmup=5)), Size(6, 2048, Rounds(10, turn=4, warmup=5)))


@dataclass(frozen=True)
class Training:
    """A model and a function that trains it for a step."""

    model: torch.nn.Module
    step: Callable[[], None]


def compare(rank: Rank) -> Comparison:
    """Compare the trainings of all models."""
    comparison = Comparison(
        f"training step, batch {BATCH}, SGD, one thread, {SIZE} ranks",
        "model",
        [ALONE, DDP, DISTRUN, DDP_ADDS, DISTRUN_ADDS],
        [(DISTRUN_ADDS, DDP_ADDS)],
        notes=[
            f"{ALONE}: each rank for itself, at the same time; {DDP}: over gloo, gradient_as_bucket_view=True; "
            f"{DISTRUN}: distrun.torch.DistributedOptimizer.",
        ],
    )
    for size in SIZES:
        trainings = {ALONE: train_alone(rank, size), DDP: _ddp(rank, size)}
        try:
            trainings[DISTRUN] = _distrun(rank, size)
        except (ImportError, AttributeError) as error:
            _note(comparison, f"{DISTRUN} is missing: {error}.")
        _check(rank, trainings)
        comparison.add(f"{size.layers} x Linear({size.width})", _measure(rank, trainings, size.rounds))
    return comparison


def _note(comparison: Comparison, note: str) -> None:
    if note not in comparison.notes:
        comparison.notes.append(note)


# The three ways of training -------------------------------------------------------------------------------------------


def train_alone(rank: Rank, size: Size) -> Training:
    """Return the training of each rank for itself."""
    import torch

    model = model_of(size)
    return training_of(rank, size, model, torch.optim.SGD(model.parameters(), lr=0.001))


def _ddp(rank: Rank, size: Size) -> Training:
    import torch

    model = torch.nn.parallel.DistributedDataParallel(model_of(size), gradient_as_bucket_view=True)
    return training_of(rank, size, model, torch.optim.SGD(model.parameters(), lr=0.001))


def _distrun(rank: Rank, size: Size) -> Training:
    import torch

    import distrun.torch

    distrun.torch.init()
    model = model_of(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer = distrun.torch.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    return training_of(rank, size, model, optimizer)


def model_of(size: Size) -> torch.nn.Module:
    """Return the model, the same on all ranks and in all trainings; signals keep their size through its 60 layers."""
    import torch

    torch.manual_seed(1)
    layers: list[torch.nn.Module] = []
    for _ in range(size.layers):
        linear = torch.nn.Linear(size.width, size.width)
        torch.nn.init.kaiming_uniform_(linear.weight, nonlinearity="relu")
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def training_of(rank: Rank, size: Size, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Training:
    """Return the training of a model on this rank's batch."""
    import torch

    torch.manual_seed(100 + rank.rank)
    features, targets = torch.randn(BATCH, size.width), torch.randn(BATCH, size.width)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(features), targets).backward()
        optimizer.step()

    return Training(model, step)


# Checking and measuring -----------------------------------------------------------------------------------------------


def _check(rank: Rank, trainings: dict[str, Training]) -> None:
    """Train for some steps and check: ranks end with the same bits, data-parallel trainings with the same weights."""
    import torch

    import distrun

    for name, training in trainings.items():
        for _ in range(5):
            training.step()
        digests = distrun.allgather_object(_digest(training.model))
        if (len(set(digests)) == 1) != (name != ALONE):
            raise SystemExit(f"{name}: after five steps the ranks' weights have the digests {digests}")
    if DISTRUN in trainings:
        pairs = zip(trainings[DDP].model.parameters(), trainings[DISTRUN].model.parameters(), strict=True)
        for number, (theirs, ours) in enumerate(pairs):
            torch.testing.assert_close(ours, theirs, msg=f"parameter {number} differs between {DDP} and {DISTRUN}")


def _digest(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def _measure(rank: Rank, trainings: dict[str, Training], rounds: Rounds) -> dict[str, Summary]:
    """Measure blocks of steps by turns. The first of a block finds another model in the caches and does not count."""
    import distrun

    rounds = rounds.shortened() if rank.quick else rounds
    spans: dict[str, list[Span]] = {name: [] for name in trainings}
    for _ in range(rounds.count):
        for name, training in trainings.items():
            timed(training.step, rank.together)
            spans[name] += [timed(training.step, at_once) for _ in range(rounds.turn)]
    results = {name: summary(slowest(distrun.allgather_object(spans[name]))) for name in trainings}
    for name, added in ((DDP, DDP_ADDS), (DISTRUN, DISTRUN_ADDS)):
        if name in results:
            results[added] = minus(results[name], results[ALONE])
    return results


def at_once() -> None:
    """Do nothing: steps of a block follow each other as in training, where only communication makes ranks wait."""


def minus(whole: Summary, part: Summary) -> Summary:
    """Return what a duration is more than its part."""
    low, high = whole.quartiles
    return Summary(whole.median - part.median, (low - part.median, high - part.median), whole.count)


if __name__ == "__main__":
    main(compare)
