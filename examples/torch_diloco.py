"""Handwritten digits on hosts with a thin network between them: they exchange what they have learned now and then.

    distrun -np 4 -H a:2,b:2 python torch_diloco.py

Each host trains by itself, its ranks together; after every 50 steps each part of the weights takes an outer step with
what all hosts have learned. `distrun --elastic` goes on when a host is lost, and takes in one that comes late.
"""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import distrun.torch as distrun

STEPS, BATCH = 400, 32


def main() -> None:
    distrun.init()
    torch.set_num_threads(1)
    torch.manual_seed(42)
    images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[360:], order[:360]

    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = distrun.DiLoCo(torch.optim.AdamW(model.parameters(), 2e-3), model.named_parameters(), every=50)

    @distrun.elastic.run  # gives all ranks the same start, too
    def learn(state: distrun.elastic.TorchState) -> None:
        while state.step < STEPS:
            generator = torch.Generator().manual_seed(1000 * state.step + distrun.rank())  # other samples on each rank
            batch = train[torch.randint(len(train), (BATCH,), generator=generator)]
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            state.step += 1
            state.advance()
        optimizer.merge()  # all hosts get the average of their weights

    learn(distrun.elastic.TorchState(model, optimizer, step=0))
    accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    if distrun.rank() == 0:
        print(f"test accuracy {accuracy:.1%}", flush=True)


if __name__ == "__main__":
    main()
