"""Ranks with different amounts of data: whoever has no more joins, and the others go on with what gradients there are.

    python torch_uneven_data.py                  one process
    distrun -np 4 python torch_uneven_data.py    rank 0 has the most batches, rank 3 the fewest

Without `join`, the first rank that leaves the loop would let the others wait for it. `--check` proves that every batch
of every rank was trained on, and that all ranks end with the same weights.
"""

import argparse

import torch

import distrun.torch as dt

BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--check", action="store_true", help="check the result; exit with 1 if wrong")
    args = parser.parse_args()

    dt.init()
    inputs, targets = data(batches=12 - 2 * (dt.rank() % 4))
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1).double()
    dt.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    optimizer = dt.DistributedOptimizer(optimizer, model.named_parameters())

    steps, last = 0, -1
    for _ in range(args.epochs):
        for batch in range(0, len(inputs), BATCH):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs[batch : batch + BATCH]), targets[batch : batch + BATCH])
            loss.backward()
            optimizer.step()
            steps += 1
        last = dt.join()  # until all ranks have come to the end of the epoch
        # The ranks that came early have missed the last steps.
        dt.broadcast_parameters(model.state_dict(), root_rank=last)

    print(f"rank {dt.rank()}: {steps} steps of its own; rank {last} came last", flush=True)
    if args.check:
        everybodys = dt.allgather_object(steps)
        expected = [args.epochs * (12 - 2 * (rank % 4)) for rank in range(dt.size())]
        check("every rank has trained on all its batches", everybodys == expected)
        check("the longest came last", everybodys[last] == max(everybodys))
        check("all ranks have the same weights", len(set(map(str, dt.allgather_object(model.weight.tolist())))) == 1)
        check("the weights are found", torch.allclose(model.weight, TRUTH[None], atol=0.05))


TRUTH = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64)


def data(batches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's own samples of a linear function with noise: batches * BATCH of them."""
    random = torch.Generator().manual_seed(dt.rank())
    inputs = torch.randn(batches * BATCH, 4, dtype=torch.float64, generator=random)
    noise = torch.randn(batches * BATCH, dtype=torch.float64, generator=random)
    return inputs, (inputs @ TRUTH + 0.05 * noise)[:, None]


def check(what: str, is_so: bool) -> None:
    everywhere = all(dt.allgather_object(is_so))
    if dt.rank() == 0:
        print(f"check: {what} ... {'ok' if everywhere else 'FAILED'}", flush=True)
    if not everywhere:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
