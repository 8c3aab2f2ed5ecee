"""Ranks that are killed: training scripts of three kinds that note each step. recovery.py starts them.

elastic      distrun.torch with elastic.run
checkpoint   distrun.torch and a checkpoint every tenth step, for ranks that are all started again
ddp          torch.distributed over gloo, with the same checkpoints
plain        distrun.torch alone, which does not survive
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

WIDTH, LAYERS, ROWS = 512, 6, 64
SAVE_EVERY = 10
KIND, FOLDER, STEPS, PAUSE = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])


def network() -> torch.nn.Sequential:
    """Return a model of 1.6 million parameters: with Adam, 19 MB of state."""
    torch.manual_seed(0)
    layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1))


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
    """Train for one step on numbers that follow from the step and the rank."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    features = torch.randn(ROWS, WIDTH, generator=generator)
    optimizer.zero_grad()
    (model(features) - features.mean(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    time.sleep(PAUSE)


def notes(rank: int) -> Callable[[str, int, int], None]:
    """Return a function that appends a word and two numbers to this rank's file, with the time."""
    file = (FOLDER / f"{rank}.log").open("a", buffering=1)

    def note(word: str, first: int, second: int) -> None:
        file.write(f"{time.monotonic():.6f} {word} {first} {second}\n")

    return note


def elastic() -> None:
    """Train with elastic.run."""
    import distrun.torch as dt
    from distrun.runtime.world import world

    dt.init()
    model = network()
    optimizer = dt.DistributedOptimizer(torch.optim.Adam(model.parameters(), 1e-3), model.named_parameters())

    @dt.elastic.run
    def train(state: dt.elastic.TorchState) -> None:
        note = notes(dt.rank())
        note("start", os.getpid(), world.generation())
        while state.step < STEPS:
            train_step(model, optimizer, state.step, dt.rank())
            state.step += 1
            state.advance()
            note("step", state.step, world.generation())

    train(dt.elastic.TorchState(model, optimizer, step=0))


def checkpoint() -> None:
    """Train with checkpoints."""
    import distrun.torch as dt

    dt.init()
    model = network()
    optimizer = dt.DistributedOptimizer(torch.optim.Adam(model.parameters(), 1e-3), model.named_parameters())
    _with_checkpoints(model, optimizer, dt.rank(), dt.restart_count())


def ddp() -> None:
    """Train with torch's own means, but for the checkpoints."""
    import torch.distributed as dist

    from distrun.runtime.world.restarts import restart_count

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(network())
    _with_checkpoints(model, torch.optim.Adam(model.parameters(), 1e-3), dist.get_rank(), restart_count())
    dist.destroy_process_group()


def _with_checkpoints(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, restart: int) -> None:
    from distrun.checkpoint import CheckpointManager

    note = notes(rank)
    note("start", os.getpid(), restart)
    checkpoints = CheckpointManager(FOLDER / "run")
    start = checkpoints.restore(model=model, optimizer=optimizer)
    for step in range(start.step, STEPS):
        train_step(model, optimizer, step, rank)
        note("step", step + 1, restart)
        if (step + 1) % SAVE_EVERY == 0:
            checkpoints.save(step + 1, model=model, optimizer=optimizer)


def plain() -> None:
    """Train without a thought of failures."""
    import distrun.torch as dt

    dt.init()
    model = network()
    optimizer = dt.DistributedOptimizer(torch.optim.Adam(model.parameters(), 1e-3), model.named_parameters())
    note = notes(dt.rank())
    for step in range(STEPS):
        train_step(model, optimizer, step, dt.rank())
        note("step", step + 1, 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"elastic": elastic, "checkpoint": checkpoint, "ddp": ddp, "plain": plain}[KIND]()
