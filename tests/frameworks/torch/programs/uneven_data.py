"""Ranks whose data ends at different times train as one process does on what there is in each step."""

import torch
from checking import check, close, gradients, parameters, run_checks, same_on_all_ranks

import distrun.torch as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
ROWS = 3


def model_of(normalization):
    torch.manual_seed(1)
    layers = [torch.nn.EmbeddingBag(9, 4, sparse=True), normalization(4), torch.nn.Linear(4, 1)]
    return torch.nn.Sequential(*layers).double()


def words(step, ranks):
    """The inputs of some ranks in one step."""
    torch.manual_seed(step)
    return torch.randint(0, 9, (SIZE * ROWS, 2))[: ranks * ROWS]


@check
def every_step_is_that_of_the_ranks_that_have_data():
    alone, model = model_of(torch.nn.BatchNorm1d), model_of(hvd.SyncBatchNorm)
    plain = torch.optim.SGD(alone.parameters(), 0.1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    for epoch in range(2):
        for step in range(2 * SIZE - 1):
            ranks = SIZE - step // 2
            plain.zero_grad()
            alone(words(step, ranks)).square().mean().backward()
            plain.step()
            if ranks > RANK:
                optimizer.zero_grad()
                model(words(step, ranks)[RANK * ROWS :][:ROWS]).square().mean().backward()
                assert model[0].weight.grad.is_sparse
                dense = [[each.to_dense() for each in gradients(one)] for one in (model, alone)]
                assert close(*dense), (epoch, step)
                optimizer.step()
        assert hvd.join() == 0
        hvd.broadcast_parameters(model.state_dict(), 0)
        assert close(parameters(model), parameters(alone))


@check
def a_rank_may_have_no_data_at_all():
    model = torch.nn.Linear(2, 1)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
    if RANK != 1:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.full((2, 2), float(RANK))).sum().backward()
            assert model.bias.grad.tolist() == [2.0]
            optimizer.step()
    last = hvd.join(device=0)
    assert last != 1
    hvd.broadcast_parameters(model.state_dict(), last)
    assert same_on_all_ranks(parameters(model))


run_checks()
