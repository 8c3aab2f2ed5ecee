"""Train a model with torch, in one of several ways; tells of each step in a line of JSON.

The samples of a step are the same whatever the number of ranks, which divide them.
"""

from __future__ import annotations

import hashlib
import sys
import time

import torch
from telling import is_over, is_there, tell

import distrun.torch as dt

WAY, STEPS = sys.argv[1], int(sys.argv[2])
HOLD = int(sys.argv[3]) if len(sys.argv) > 3 else None
"""After that many steps the ranks wait for others to come, until a file `go` is there."""
BATCH = 12
torch.set_num_threads(1)


def samples(step: int) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Return this rank's part of a step: the numbers of the samples, inputs, targets."""
    numbers = list(range(step * BATCH, (step + 1) * BATCH))[dt.rank() :: dt.size()]
    inputs = torch.tensor([[float((number * place) % 7) for place in range(1, 9)] for number in numbers]) / 7
    return numbers, inputs, inputs.sum(1, keepdim=True)


def network() -> torch.nn.Module:
    """Return a small model, made alike on all ranks."""
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def digest(*models: torch.nn.Module) -> str:
    """Return what is equal for equal bits."""
    found = hashlib.sha256()
    for model in models:
        for tensor in model.state_dict().values():
            found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def mean_loss(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of one rank such that the average over the ranks is the loss of the whole batch."""
    return ((model(inputs) - targets) ** 2).sum() * dt.size() / BATCH


def done(state: dt.elastic.TorchState, numbers: list[int], loss: float) -> None:
    """Count a step, and mark its end."""
    state.step += 1
    tell(step=state.step, samples=numbers, loss=loss / dt.size(), size=dt.size(), rank=dt.rank())
    state.advance()
    while state.step == HOLD and not is_there("go"):
        time.sleep(0.01)
        state.check_host_updates()
    time.sleep(0.002)


# Ways to train --------------------------------------------------------------------------------------------------------


def plain() -> None:
    """Adam, with a schedule and clipping."""
    model = network()
    optimizer = dt.DistributedOptimizer(torch.optim.Adam(model.parameters(), 0.01), model.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.9)

    @dt.elastic.run
    def train(state: dt.elastic.TorchState) -> None:
        while not is_over(state.step, STEPS):
            numbers, inputs, targets = samples(state.step)
            optimizer.zero_grad()
            loss = mean_loss(model, inputs, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            done(state, numbers, loss.item())

    train(dt.elastic.TorchState(model, optimizer, scheduler=scheduler, step=0))
    tell(weights=digest(model), rate=scheduler.get_last_lr()[0])


def accumulating() -> None:
    """Two backward passes per step; the loss is averaged in a collective after the step."""
    model = network()
    optimizer = dt.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), backward_passes_per_step=2
    )

    @dt.elastic.run
    def train(state: dt.elastic.TorchState) -> None:
        while not is_over(state.step, STEPS):
            numbers, inputs, targets = samples(state.step)
            optimizer.zero_grad()
            losses = [mean_loss(model, inputs[part], targets[part]) for part in (slice(0, 2), slice(2, None))]
            for loss in losses:
                loss.backward()
            optimizer.step()
            dt.allreduce(sum(losses).detach(), name="loss")
            done(state, numbers, sum(losses).item())

    train(dt.elastic.TorchState(model, optimizer, step=0))
    tell(weights=digest(model))


def gan() -> None:
    """Two models with an optimizer each, which take turns; batch normalisation over all ranks."""
    generator = torch.nn.Sequential(torch.nn.Linear(8, 8), dt.SyncBatchNorm(8), torch.nn.Linear(8, 8))
    judge = network()
    makes = dt.DistributedOptimizer(torch.optim.Adam(generator.parameters(), 0.01))
    judges = dt.DistributedOptimizer(torch.optim.Adam(judge.parameters(), 0.01))

    @dt.elastic.run
    def train(state: dt.elastic.TorchState) -> None:
        while not is_over(state.step, STEPS):
            numbers, inputs, targets = samples(state.step)
            judges.zero_grad()
            wrong = mean_loss(judge, inputs, targets) + judge(generator(inputs).detach()).square().mean()
            wrong.backward()
            judges.step()
            makes.zero_grad()
            mean_loss(judge, generator(inputs), targets).backward()
            makes.step()
            done(state, numbers, wrong.item())

    state = dt.elastic.TorchState(generator=generator, judge=judge, makes=makes, judges=judges, step=0)
    train(state)
    tell(weights=digest(generator, judge))


torch.manual_seed(1)
dt.init()
{"plain": plain, "accumulating": accumulating, "gan": gan}[WAY]()
