"""A training with PyTorch whose passes take at least what they sleep: 10 ms for input, 20 ms forward, 40 ms between the
gradients of its second layer and those of its first."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

import distrun.torch as dt

STEPS, LOADING, FORWARD, BACKWARD, WIDTH = int(sys.argv[1]), 0.010, 0.020, 0.040, 256

dt.init()
torch.set_num_threads(1)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, values):
        time.sleep(FORWARD)
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(BACKWARD)
        return gradient.clone()


class Samples(Dataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        time.sleep(LOADING)
        return torch.ones(WIDTH)


first, second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1)
model = torch.nn.ModuleList([first, second])
optimizer = dt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6), model.named_parameters())
for samples in DataLoader(Samples()):
    optimizer.zero_grad()
    second(Slow.apply(first(samples))).sum().backward()
    optimizer.step()
