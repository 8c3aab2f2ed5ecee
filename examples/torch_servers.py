"""Handwritten digits on parameter servers: ranks train at their own speed, and nobody waits for the slowest.

distrun --servers 2 -np 4 python torch_servers.py                 at most 4 steps apart
distrun --servers 2 -np 4 python torch_servers.py --staleness inf as fast as each can
distrun --servers 2 -np 4 python torch_servers.py --staleness 0   synchronous
"""

import argparse

import torch
from sklearn.datasets import load_digits

import distrun.torch as dt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--staleness", type=float, default=4)
    args = parser.parse_args()

    dt.init()  # 1. who am I, and where are the servers
    torch.manual_seed(42)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = dt.AsyncOptimizer(optimizer, args.staleness, model.named_parameters())  # 2. parameters are on servers

    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    train = torch.utils.data.TensorDataset(images[:1500], labels[:1500])
    sampler = dt.distributed_sampler(train)  # 3. each rank has its own part of the data
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in torch.utils.data.DataLoader(train, 32, sampler=sampler):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()  # 4. pushes gradients, and brings newer parameters
    dt.barrier()
    optimizer.synchronize()  # 5. the newest parameters of all
    if dt.rank() == 0:
        accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
        print(f"test accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
