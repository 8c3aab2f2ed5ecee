"""A rank of an elastic job that captures a CUDA graph in each of three generations, on the simulated GPU.

It tries what must be refused in the next one: a step behind the replay of a graph from before.
"""

import json

import playing
import simulator
import torch
from checking import close, gradients, parameters
from expecting import raises

import distrun.torch as hvd
from distrun.errors import UsageError
from distrun.runtime.world import world

hvd.init()
playing.play()
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
produced = []
for each in model.parameters():  # before the hooks of the optimizer: what a graph reads must live as long as it
    each.register_post_accumulate_grad_hook(lambda each: produced.append(each.grad))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
graphs = []


def driver():
    return world.engine().gpu().driver


def backward(rows):
    optimizer.zero_grad()
    model(rows).sum().backward()


def expected():
    """The gradients of all ranks' rows together, computed by this rank alone."""
    plain = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    plain.load_state_dict(model.state_dict())
    plain(torch.full((1, 4), (hvd.size() + 1) / 2)).sum().backward()
    return gradients(plain)


def is_refused():
    before = parameters(model)
    with raises(UsageError, "captured before ranks came or went", "let it go, run some whole steps, and capture it"):
        optimizer.step()
    assert all(map(torch.equal, parameters(model), before))


def capture(state):
    """Capture a reduction behind some whole steps, and step behind a replay of it."""
    stream, rows = driver().new_stream(), torch.full((1, 4), hvd.rank() + 1.0)
    with playing.use(stream.ptr):
        for _ in range(3):
            backward(rows)
            driver().synchronize(driver().record(stream.ptr))
            optimizer.step()
            state.advance()
        if graphs:
            is_refused()
        produced.clear()
        simulator.begin_capture(stream)
        backward(rows)
        graph = simulator.end_capture(stream)
    graphs[:] = [(graph, list(produced))]
    graph.launch()
    driver().synchronize(driver().record(stream.ptr))
    assert close(gradients(model), expected(), 1e-5)
    optimizer.step()
    state.advance()


@hvd.elastic.run
def train(state):
    if graphs:
        is_refused()
    capture(state)
    print(json.dumps({"step": 1, "generation": world.generation()}), flush=True)
    while world.generation() < 3:
        hvd.barrier()
        state.advance()


train(hvd.elastic.TorchState(model, optimizer))
graphs.clear()
