"""Starting from rank 0's state, and dividing the data."""

import copy

import torch
from checking import batches, check, loss_of, mine, network, parameters, run_checks, same_on_all_ranks
from expecting import raises
from one_process import train_on, trained_alone
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import distrun.torch as hvd
from distrun.errors import MismatchError

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()


@check
def parameters_become_the_roots():
    for root in (0, SIZE - 1):
        for form in (
            lambda model: model.state_dict(),
            lambda model: model.named_parameters(),
            lambda model: list(model.named_parameters()),
            lambda model: model.parameters(),
        ):
            model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
            torch.manual_seed(RANK)
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter)
            expected = hvd.broadcast_object([parameter.cpu() for parameter in parameters(model)], root)
            hvd.broadcast_parameters(form(model), root)
            assert all(map(torch.equal, [parameter.cpu() for parameter in parameters(model)], expected))
    hvd.broadcast_parameters({"x": torch.ones(2), "text": "no tensor", "none": None}, root_rank=0)
    with raises(ValueError, "not a Tensor"):
        hvd.broadcast_parameters(torch.ones(2), 0)


@check
def different_parameters_are_an_error_that_names_the_difference():
    model = torch.nn.Linear(3, 3 + (RANK == 1))
    with raises(
        MismatchError, "the parameters to broadcast", "weight [3, 3] float32", "weight [4, 3] float32 on rank 1"
    ):
        hvd.broadcast_parameters(model.state_dict(), 0)
    with raises(MismatchError, "the parameters of the optimizer"):
        hvd.broadcast_optimizer_state(torch.optim.SGD(model.parameters(), 0.1), 0)


@check
def optimizer_state_becomes_the_roots_whatever_the_others_have():
    optim = torch.optim
    for make in (
        lambda p: optim.SGD(p, 0.1),
        lambda p: optim.SGD(p, 0.1, momentum=0.9),
        lambda p: optim.Adam(p, 0.01, amsgrad=True),
        lambda p: optim.AdamW(p, torch.tensor(0.01)),
        lambda p: optim.Adagrad(p, 0.01),
        lambda p: optim.Rprop(p),
        lambda p: optim.LBFGS(p, max_iter=3),
    ):
        for theirs in (0, 2):
            model, optimizer = trained_alone(make, 3 if RANK == 0 else theirs)
            if RANK:
                optimizer.param_groups[0]["lr"] = 7.0
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            kept = parameters(model)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=model)
            states = hvd.allgather_object(optimizer.state_dict())
            assert all(same(state, states[0]) for state in states)
            assert all(map(torch.equal, kept, parameters(model))), "the parameters are not touched"
            assert optimizer.param_groups[0]["lr"] != 7.0
            hvd.broadcast_parameters(model.state_dict(), 0)
            if not isinstance(optimizer, optim.LBFGS):
                train_on(model, optimizer, *map(mine, batches(2)))
                assert same_on_all_ranks(parameters(model))


def same(left, right):
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left.cpu(), right.cpu())
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@check
def a_checkpoint_read_by_rank_0_alone_resumes_everywhere():
    reference, optimizer = trained_alone(lambda p: torch.optim.Adam(p, 0.01), 3)
    saved = copy.deepcopy((reference.state_dict(), optimizer.state_dict()))
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.5)
    if RANK == 0:
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
    optimizer = hvd.DistributedOptimizer(optimizer)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.01
    loss_of(model, mine(batches(1)[0])).backward()
    optimizer.step()
    assert {int(state["step"]) for state in optimizer.state.values()} == {4}
    assert same_on_all_ranks(parameters(model))


@check
def the_distributed_sampler_of_torch_divides_the_data():
    with torch.device("cpu"):
        data = TensorDataset(torch.arange(8 * SIZE))
        sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=True, seed=1)
        assert list(hvd.distributed_sampler(data, seed=1)) == list(sampler)
        sampler.set_epoch(3)
        seen = torch.cat([batch for (batch,) in DataLoader(data, batch_size=4, sampler=sampler)])
    assert len(seen) == 8
    assert sorted(hvd.allgather(seen).tolist()) == list(range(8 * SIZE))


run_checks()
