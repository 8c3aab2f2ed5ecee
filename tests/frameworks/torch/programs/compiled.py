"""Compiled models train as others do."""

import copy
import sys

import torch
from checking import batches, check, close, gradients, loss_of, mine, network, parameters, run_checks, same_on_all_ranks
from one_process import train_on

import distrun.torch as hvd


@check
def a_compiled_model_gets_the_result_of_one_process():
    alone = network()
    optimizer = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9)
    train_on(alone, optimizer, *batches(4))
    model = network()
    compiled = torch.compile(model, backend=sys.argv[1] if len(sys.argv) > 1 else "aot_eager")
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(compiled.parameters(), 0.1, momentum=0.9))
    for batch in batches(4):
        optimizer.zero_grad()
        loss_of(compiled, mine(batch)).backward()
        assert same_on_all_ranks(gradients(model))
        optimizer.step()
    assert close(parameters(model), parameters(alone))
    assert same_on_all_ranks(parameters(model))


@check
def a_compiled_model_with_synchronised_layers_does_what_it_does_uncompiled():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), hvd.SyncBatchNorm(4), torch.nn.Linear(4, 2)).double()
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager")
    for batch in batches(2):
        loss_of(compiled, mine(batch)).backward()
        loss_of(twin, mine(batch)).backward()
    assert close(gradients(model), gradients(twin))
    assert close(list(model.buffers()), list(twin.buffers()))


run_checks()
