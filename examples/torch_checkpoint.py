"""A run that goes on where it was: the lines for checkpoints are marked 1 and 2.

    distrun -np 2 python torch_checkpoint.py runs/a                      stop it with Ctrl-C, and start it again
    distrun --max-restarts 3 -np 2 python torch_checkpoint.py runs/a     start it again whenever a rank fails

`--fail-at 120` has a rank die once, after that many steps, to see it happen.
"""

import argparse
import os
import signal

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import distrun.torch as distrun
from distrun.checkpoint import CheckpointManager


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", help="the folder of this run")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=50, help="steps (default: %(default)s)")
    parser.add_argument("--fail-at", type=int, help="have the last rank die after so many steps, in the first run")
    args = parser.parse_args()

    distrun.init()
    torch.set_num_threads(1)
    torch.manual_seed(42)
    data = spirals()
    model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
    optimizer = distrun.DistributedOptimizer(torch.optim.Adam(model.parameters(), 0.02), model.named_parameters())

    checkpoints = CheckpointManager(args.folder, max_to_keep=3)
    start = checkpoints.restore(model=model, optimizer=optimizer)  # 1. the same on all ranks
    if start.step == 0:
        distrun.broadcast_parameters(model.state_dict(), root_rank=0)
    if distrun.rank() == 0:
        print(f"from step {start.step}, restarted {distrun.restart_count()} times", flush=True)

    for step in range(start.step, args.steps):
        points, labels = batch(data, step)
        optimizer.zero_grad()
        loss = cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        if (step + 1) % args.save_every == 0:
            checkpoints.save(step + 1, model=model, optimizer=optimizer)  # 2. written while training goes on
        if step + 1 == args.fail_at and not distrun.restart_count() and distrun.rank() == distrun.size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    points, labels = data[:]
    accuracy = (model(points).argmax(1) == labels).double().mean()
    if distrun.rank() == 0:
        print(f"step {args.steps}: accuracy {accuracy:.1%}", flush=True)


def spirals(points: int = 600) -> TensorDataset:
    """Return three spirals of points, with the number of the spiral as the label."""
    labels = torch.arange(points) % 3
    radius = torch.linspace(0.1, 1, points)
    angle = 4 * radius + labels * 2 * torch.pi / 3
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels)


def batch(data: TensorDataset, step: int, rows: int = 48) -> tuple[torch.Tensor, ...]:
    """Return this rank's part of the combined batch of a step, which any number of ranks divide."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(step))
    return data[order[:rows][distrun.rank() :: distrun.size()]]


if __name__ == "__main__":
    main()
