"""Parameters that come and go, or have sparse gradients."""

import gc
import weakref

import torch
from checking import batches, check, close, gradients, loss_of, mine, network, parameters, run_checks, same_on_all_ranks
from one_process import as_one_process, made, plain, train_on, wrapped

import distrun.torch as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
SGD = torch.optim.SGD


@check
def frozen_parameters_stay_out_and_unfrozen_ones_come_in():
    def run(wrap, part):
        model = network()
        model[0].requires_grad_(False)
        optimizer = wrap(SGD(model.parameters(), 0.1, momentum=0.9), model)
        for step, batch in enumerate(batches(9)):
            if step == 3:
                model[0].weight.requires_grad_(True)
            if step == 5:
                model.requires_grad_(True)
            if step == 7:
                model[2].requires_grad_(False)
            train_on(model, optimizer, part(batch))
        return parameters(model)

    as_one_process(run)


@check
def parameters_added_later_are_reduced_too():
    def run(wrap, part, add):
        model = network()
        optimizer = wrap(SGD(model[0].parameters(), 0.1), model[0])
        for step, batch in enumerate(batches(5)):
            if step == 2:
                add(optimizer, model)
            train_on(model, optimizer, part(batch))
        return parameters(model)

    def properly(optimizer, model):
        optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.05})
        optimizer.add_param_group({"params": list(model[4].parameters())})

    def behind_our_back(optimizer, model):
        optimizer.param_groups[0]["params"].extend(model[2].parameters())

    for add in (properly, behind_our_back):
        as_one_process(run, add)


@check
def sparse_gradients_travel_as_indices_and_values():
    def run(wrap, part, sparse, **options):
        torch.manual_seed(1)
        table = torch.nn.EmbeddingBag(50, 4, mode="sum", sparse=sparse).double()
        model = torch.nn.Sequential(table, torch.nn.Linear(4, 1).double())
        optimizer = wrap(SGD(model.parameters(), 0.1), model, **options)
        for step in range(4):
            torch.manual_seed(step)
            words = torch.randint(0, 50, (8 * SIZE, 3))
            optimizer.zero_grad()
            model(part((words, words))[0]).square().mean().backward()
            assert table.weight.grad.is_sparse == sparse
            optimizer.step()
        return parameters(model)

    for options in ({}, {"sparse_as_dense": True}, {"groups": 1, "sparse_as_dense": True}):
        as_one_process(run, True, **options)


class Halves:
    """A user's compressor, an object."""

    def compress(self, tensor):
        return tensor / 2, None

    def decompress(self, tensor, ctx):
        return tensor * 2


@check
def an_optimizer_that_needs_sparse_gradients_gets_them():
    def run(wrap, rows, **options):
        torch.manual_seed(1)
        table = torch.nn.Embedding(20, 2, sparse=True).double()
        optimizer = wrap(torch.optim.SparseAdam(table.parameters(), 0.05), table, **options)
        for step in range(4):
            torch.manual_seed(step)
            words = torch.randint(0, 20, (SIZE, 3))[rows]
            optimizer.zero_grad()
            table(words).square().sum().backward()
            optimizer.step()
        return parameters(table)

    alone = run(plain, slice(None))
    for options in ({}, {"sparse_as_dense": True}, {"sparse_as_dense": True, "compression": Halves()}):
        together = run(wrapped, slice(RANK, RANK + 1), op=hvd.Sum, **options)
        assert close(together, alone), options
        assert same_on_all_ranks(together)


@check
def a_sparse_parameter_may_be_unused_on_some_ranks():
    table = torch.nn.Embedding(10, 2, sparse=True)
    hvd.broadcast_parameters(table.state_dict(), 0)
    other = torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*table.parameters(), other], 0.1))
    for step in range(4):
        optimizer.zero_grad()
        loss = other.sum()
        if step < 3 and step % SIZE == RANK:
            loss = loss + table(torch.tensor([1, 2, 1])).sum()
        loss.backward()
        optimizer.step()
        assert same_on_all_ranks(parameters(table))
    assert table.weight.grad is None


@check
def a_discarded_optimizer_leaves_its_parameters_alone():
    model, optimizer = made()
    loss_of(model, mine(batches(1)[0])).backward()
    gone = weakref.ref(optimizer)
    reducer = weakref.ref(optimizer._reducer)
    optimizer = None
    gc.collect()
    assert gone() is None
    assert reducer() is None
    model.zero_grad()
    batch = mine(batches(1)[0])
    loss_of(model, batch).backward()
    assert not same_on_all_ranks(gradients(model))


run_checks()
