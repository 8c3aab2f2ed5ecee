"""Horovod's documentation of elastic training with PyTorch, word for word but for the data, the model and the end."""

import hashlib
import os
import time

import horovod.torch as hvd
import torch
from torch import optim
from torch.nn import functional

torch.set_num_threads(1)
lr, epochs, batches_per_epoch, batches_per_commit = 0.01, 3, 40, 5


def get_random_batch():
    print("batch", flush=True)
    time.sleep(0.005 if os.path.exists("end") else 0.05)  # the test must be able to interrupt
    return torch.rand(4, 6), torch.randint(3, (4,))


hvd.init()

model = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.LogSoftmax(1))
optimizer = optim.SGD(model.parameters(), lr * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer)


@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, epochs):  # noqa: B020
        for state.batch in range(state.batch, batches_per_epoch):  # noqa: B020
            data, target = get_random_batch()

            optimizer.zero_grad()
            output = model(data)
            loss = functional.nll_loss(output, target)
            loss.backward()
            optimizer.step()

            if state.batch % batches_per_commit == 0:
                state.commit()
        state.batch = 0


def on_state_reset():
    # adjust learning rate on reset
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr * hvd.size()


state = hvd.elastic.TorchState(model, optimizer, batch=0, epoch=0)
state.register_reset_callbacks([on_state_reset])
train(state)

weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
print("done", state.epoch, round(optimizer.param_groups[0]["lr"], 3), hashlib.sha256(weights).hexdigest(), flush=True)
