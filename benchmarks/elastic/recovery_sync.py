"""Sync: the state of a training, 19 MB, as a newcomer gets it, beside one broadcast of as many bytes and a pickle."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import distrun.torch as dt
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Rounds, durations, summary, take_turns
from benchmarks.support.ranks import run

WIDTH, LAYERS = 512, 6
BROADCAST, SYNC, PICKLED = "one broadcast", "TorchState.sync", "broadcast_object"


@dataclass(frozen=True)
class Member:
    """One of two ranks: rank 0 has been training, rank 1 has just come."""

    rank: int
    quick: bool

    def part(self) -> None:
        """Leave in an orderly way."""
        dt.barrier()
        dt.shutdown()


def meet(quick: bool) -> Member:
    """Join the other rank."""
    dt.init()
    torch.set_num_threads(1)
    return Member(dt.rank(), quick)


def compare(member: Member) -> Comparison:
    """Compare the ways by which the state reaches rank 1."""
    layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1))
    flat = torch.zeros(3 * sum(each.numel() for each in model.parameters()))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    model(torch.randn(4, WIDTH)).sum().backward()
    optimizer.step()
    fresh = None

    def newcomer() -> None:
        """Give rank 1 an optimizer that has no state yet; both are about to begin a generation."""
        nonlocal fresh
        kept = optimizer if member.rank == 0 else torch.optim.Adam(model.parameters(), 1e-3)
        fresh = dt.elastic.TorchState(model, kept, step=5)
        fresh.begin()
        if member.rank == 0:
            fresh.advance()
        dt.barrier()
        fresh.recover(False)
        fresh.elect()
        dt.barrier()

    def pickled() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()} if member.rank == 0 else None
        dt.broadcast_object(state, 0)

    programs = {
        BROADCAST: lambda: dt.broadcast_(flat, 0, name="flat"),
        SYNC: lambda: fresh.sync(),
        PICKLED: pickled,
    }
    rounds = Rounds(30, turn=1, warmup=5)
    spans = take_turns(programs, rounds.shortened() if member.quick else rounds, newcomer, lambda name: None)
    found = {name: summary(durations(dt.allgather_object(spans[name]))) for name in programs}
    comparison = Comparison(
        f"the state of a training, {flat.numel() * 4 / 1e6:.0f} MB, from rank 0 to a newcomer on the same host",
        "state",
        [*programs],
        [(SYNC, BROADCAST), (PICKLED, BROADCAST)],
    )
    comparison.add("6 x Linear(512), Adam", found)
    return comparison


if __name__ == "__main__":
    run(meet, compare)
