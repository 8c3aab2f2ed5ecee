"""Handwritten digits with parameters to try: what a training script needs for `distrun sweep`, marked 1 and 2.

    python torch_sweep.py --lr 0.1            one run, as before
    distrun sweep --trials 20 --prune torch_sweep.py lr=log:1e-3..1 'width=16|32|64'
    distrun sweep -np 2 -H localhost:4 --grid torch_sweep.py 'lr=0.03|0.1|0.3' 'width=16|64'

Without `distrun sweep` nothing is reported, and without `distrun` it is a script of one process.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import distrun.torch as distrun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lr", type=float, default=0.1)  # 1. parameters are options of the script
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    distrun.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    train_data, test_data = digits()
    sampler = DistributedSampler(train_data, distrun.size(), distrun.rank(), seed=args.seed)
    loader = DataLoader(train_data, 32, sampler=sampler)
    model = torch.nn.Sequential(torch.nn.Linear(64, args.width), torch.nn.ReLU(), torch.nn.Linear(args.width, 10))
    optimizer = distrun.DistributedOptimizer(torch.optim.SGD(model.parameters(), args.lr, momentum=0.9))
    distrun.broadcast_parameters(model.state_dict(), root_rank=0)

    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
        loss = distrun.allreduce(test_loss(model, test_data), name="test loss")  # the average over the ranks
        if distrun.rank() == 0:
            print(f"epoch {epoch}: test loss {loss.item():.4f}", flush=True)
        distrun.report(loss, epoch)  # 2. by all ranks: the trial may end here, on all of them


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return scikit-learn's 1797 images, divided into training and test data in the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    return TensorDataset(*data[order[360:]]), TensorDataset(*data[order[:360]])


def test_loss(model: torch.nn.Module, data: TensorDataset) -> torch.Tensor:
    """Return the loss on this rank's part of the test data."""
    images, labels = data[distrun.rank() :: distrun.size()]
    with torch.no_grad():
        return cross_entropy(model(images), labels)


if __name__ == "__main__":
    main()
