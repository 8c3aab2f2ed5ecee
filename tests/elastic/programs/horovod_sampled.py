"""A script for Horovod with an ElasticSampler, as its examples have it; tells which samples were used."""

import os
import time

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.torch.elastic import run
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState
from torch.nn import functional

torch.set_num_threads(1)
hvd.init()
dataset = torch.utils.data.TensorDataset(torch.arange(480), torch.rand(480, 6), torch.randint(3, (480,)))
sampler = ElasticSampler(dataset)
loader = torch.utils.data.DataLoader(dataset, batch_size=4, sampler=sampler)
model = torch.nn.Linear(6, 3)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
assert issubclass(HostsUpdatedInterrupt, RuntimeError)
assert issubclass(HorovodInternalError, RuntimeError)


@run
def train(state):
    for state.epoch in range(state.epoch, 2):  # noqa: B020
        for batch_idx, (numbers, data, target) in enumerate(loader):
            print("batch", flush=True)
            numbers = hvd.allgather(numbers)
            optimizer.zero_grad()
            functional.cross_entropy(model(data), target).backward()
            optimizer.step()
            state.sampler.record_batch(batch_idx, 4)
            state.used += numbers.tolist()
            state.commit()
            time.sleep(0.005 if os.path.exists("end") else 0.05)  # the test must be able to interrupt
        state.sampler.set_epoch(state.epoch + 1)


state = TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, used=[])
train(state)
print("used", sorted(state.used) == sorted(2 * list(range(480))), flush=True)
