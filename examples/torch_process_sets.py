"""Two networks trained at the same time, each by one half of the ranks, that then vote: process sets in PyTorch.

    python torch_process_sets.py                  one process: there is one network
    distrun -np 4 python torch_process_sets.py    ranks 0 and 1 train the first one, ranks 2 and 3 the second

A process set is a part of the ranks with collectives of its own: here one for the gradients of each network. The votes
are added up over all ranks. `--check` proves the point: what a set has trained is what one process trains on the set's
data, and nobody else's gradients got into it.
"""

import argparse

import torch

import distrun.torch as dt

BATCH = 240  # of a set's ranks together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--check", action="store_true", help="check the result; exit with 1 if wrong")
    args = parser.parse_args()

    dt.init()
    sets = [dt.global_process_set]
    if dt.size() > 1:  # all ranks make all sets, in the same order; each is in one of them
        half = dt.size() // 2
        sets = [dt.add_process_set(range(half)), dt.add_process_set(range(half, dt.size()))]
    number, own = next((number, one) for number, one in enumerate(sets) if one.included())
    if BATCH % own.size():
        parser.error(f"{own.size()} ranks cannot divide a batch of {BATCH} equally")

    points, labels = moons()
    model = network(seed=dt.rank())  # another one on each rank, until the first of the set gives its own to the others
    dt.broadcast_parameters(model.state_dict(), root_rank=own.ranks[0], process_set=own)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    optimizer = dt.DistributedOptimizer(optimizer, model.named_parameters(), process_set=own)
    train(model, optimizer, points, labels, args.steps, own.rank(), own.size())

    with torch.no_grad():
        votes = dt.allreduce(model(points).softmax(1), name="votes")  # of all ranks, so of both networks
    accuracy = float((votes.argmax(1) == labels).float().mean())
    print(f"rank {dt.rank()}: network {number} of {len(sets)}, trained by ranks {own.ranks}", flush=True)
    if dt.rank() == 0:
        print(f"networks: {len(sets)}, steps: {args.steps}, accuracy of their vote: {accuracy:.1%}", flush=True)

    if args.check:
        check("accuracy is at least 95 %", accuracy >= 0.95)
        alone = network(seed=own.ranks[0])
        train(alone, torch.optim.Adam(alone.parameters(), 0.01), points, labels, args.steps, rank=0, size=1)
        pairs = zip(model.parameters(), alone.parameters(), strict=True)
        check("a set equals one process on its data", all(torch.allclose(a, b, atol=1e-6) for a, b in pairs))
        weights = dt.allgather_object(model[0].weight.tolist())
        check("the networks differ", len({str(one) for one in weights}) == len(sets))


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    points: torch.Tensor,
    labels: torch.Tensor,
    steps: int,
    rank: int,
    size: int,
) -> None:
    """Train on the parts of batches that belong to one rank among `size`."""
    for step in range(steps):
        batch = (torch.arange(BATCH) + step * BATCH) % len(points)
        mine = batch[rank::size]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(points[mine]), labels[mine]).backward()
        optimizer.step()


def moons(count: int = 1200) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points of shape (count, 2) on two half circles with some noise, in random order, and their circles."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (count,), generator=random)
    turn = torch.rand(count, dtype=torch.float64, generator=random) * torch.pi
    side = 1 - 2 * labels
    points = torch.stack([turn.cos() * side + labels, turn.sin() * side + labels / 2], dim=1)
    return points + 0.1 * torch.randn(points.shape, dtype=torch.float64, generator=random), labels


def network(seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).double()


def check(what: str, is_so: bool) -> None:
    everywhere = all(dt.allgather_object(is_so))
    if dt.rank() == 0:
        print(f"check: {what} ... {'ok' if everywhere else 'FAILED'}", flush=True)
    if not everywhere:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
