"""Elastic training that tells of every step, for campaign.py, which kills its ranks, and for tests.

    distrun -np 2 --elastic python benchmarks/chaos/program.py --log FOLDER

Each process appends its facts to a file of its own in FOLDER, or prints them: a line of JSON each, written at once. A
step's fact is written before its gradients are reduced, so each rank's fact of a step that is done is there, whoever
was killed since. checks.py decides by the facts whether all is well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import distrun.data
import distrun.torch as dt
from distrun.runtime.world import world

HOST = socket.gethostname()


class Numbers(Dataset[Any]):
    """Samples of a function with noise, which know their numbers."""

    def __init__(self, samples: int) -> None:
        random = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(samples, 8, generator=random, dtype=torch.float64)
        noise = torch.randn(samples, generator=random, dtype=torch.float64)
        self.targets = torch.tanh(self.inputs.sum(1)) + 0.1 * noise

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.inputs[index], self.targets[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=192)
    parser.add_argument("--batch", type=int, default=8, help="samples of each rank in a step")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--data", choices=["shard", "sampler"], default="shard")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of each rank's DataLoader")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep in each step")
    parser.add_argument("--until", type=Path, help="a file that ends the training at the end of an epoch")
    parser.add_argument("--log", type=Path, help="the folder of the facts; printed without it")
    args = parser.parse_args()
    torch.set_num_threads(1)

    dt.init()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    optimizer = dt.DistributedOptimizer(optimizer, model.named_parameters())
    dataset = Numbers(args.samples)
    options = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    if args.data == "shard":
        place = loader = distrun.data.shard(dataset, args.batch, shuffle=True, seed=5, pad=False, **options)
    else:
        place = dt.elastic.ElasticSampler(dataset, seed=5, batch_size=args.batch)
        loader = DataLoader(dataset, batch_sampler=place, **options)
    log = Log(args.log)

    @dt.elastic.run
    def train(state: Any) -> None:
        log.tell("start", step=state.step, weights=fingerprint(model, optimizer), host=HOST, pid=os.getpid())
        while state.epoch < args.epochs and not is_told_to_end(args.until):
            place.set_epoch(state.epoch)
            for number, (indices, inputs, targets) in enumerate(loader):
                optimizer.zero_grad()
                # Ranks with a sample more or less than others: the step is that of all samples together.
                loss = torch.square(model(inputs)[:, 0] - targets).sum() / args.batch
                log.tell(
                    "step",
                    step=state.step,
                    epoch=state.epoch,
                    samples=indices.tolist(),
                    loss=loss.item(),
                    at=time.monotonic(),
                )
                loss.backward()
                time.sleep(args.pause)
                optimizer.step()
                if args.data == "sampler":
                    place.record_batch(number, args.batch)
                state.step += 1
                state.advance()
            state.epoch += 1

    state = dt.elastic.TorchState(model, optimizer, place=place, epoch=0, step=0)
    train(state)
    log.tell("end", step=state.step, epochs=state.epoch, weights=fingerprint(model, optimizer))


def is_told_to_end(until: Path | None) -> bool:
    """Whether the file is there, which all ranks must see alike."""
    return until is not None and dt.allreduce(torch.tensor(float(until.exists())), name="until").item() > 0


class Log:
    """Facts of this process."""

    def __init__(self, folder: Path | None) -> None:
        self._file = 1  # standard output
        if folder is not None:
            name = f"{HOST}.{os.getpid()}.jsonl"
            self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(self, what: str, **facts: object) -> None:
        """Append a line, by a single call: a process that is killed leaves whole lines."""
        place = {"generation": world.generation(), "rank": dt.rank(), "size": dt.size()}
        os.write(self._file, (json.dumps({"what": what, **place, **facts}) + "\n").encode())


def fingerprint(*parts: Any) -> str:
    """Return a hash of all tensors of modules and optimizers: equal only if all bits are."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for entry in value:
                add(entry)
        else:
            digest.update(repr(value).encode())

    for part in parts:
        add(part.state_dict())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
