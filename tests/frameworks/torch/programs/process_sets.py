"""Two halves of the ranks do different things at the same time, each as if it were the world."""

import torch
from checking import batches, check, close, gradients, loss_of, network, parameters, run_checks
from expecting import raises
from one_process import train_on

import distrun.torch as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
FIRST, SECOND = [hvd.add_process_set(hvd.ProcessSet(list(ranks))) for ranks in (range(2), range(2, SIZE))]
OWN = FIRST if FIRST.included() else SECOND
ROOT = OWN.ranks[-1]


def of_set(ranks):
    return torch.stack([torch.full((2,), float(rank)) for rank in ranks])


@check
def collectives_are_those_of_the_set():
    mine, everybodys = torch.full((2,), float(RANK)), of_set(OWN.ranks)
    assert torch.equal(hvd.allreduce(mine, name="x", process_set=OWN), everybodys.mean(0))
    assert torch.equal(hvd.allgather(mine, name="x", process_set=OWN), everybodys.flatten())
    assert torch.equal(hvd.broadcast(mine, ROOT, name="x", process_set=OWN), everybodys[-1])
    assert hvd.reducescatter(torch.ones(OWN.size()), op=hvd.Sum, process_set=OWN).tolist() == [OWN.size()]
    received, rows = hvd.alltoall(torch.full((OWN.size(),), RANK), [1] * OWN.size(), process_set=OWN)
    assert received.tolist() == OWN.ranks
    assert rows.tolist() == [1] * OWN.size()
    sparse = hvd.sparse_allreduce_async(mine.to_sparse(), "sparse", hvd.Average, OWN)()
    assert torch.equal(sparse.to_dense(), everybodys.mean(0))
    assert hvd.broadcast_object(RANK, ROOT, process_set=OWN) == ROOT
    assert hvd.allgather_object(RANK, process_set=OWN) == OWN.ranks
    hvd.barrier(process_set=OWN)


@check
def gradients_flow_within_the_set():
    leaf = torch.ones(2, requires_grad=True)
    (hvd.broadcast(leaf, ROOT, process_set=OWN) * (RANK + 1)).sum().backward()
    expected = sum(rank + 1 for rank in OWN.ranks) / OWN.size()
    assert leaf.grad.tolist() == [expected if RANK == ROOT else 0.0] * 2
    leaf = torch.ones(1, 2, requires_grad=True)
    (hvd.allgather(leaf, process_set=OWN) * (RANK + 1)).sum().backward()
    assert leaf.grad.tolist() == [[expected] * 2]
    leaf = torch.ones(OWN.size(), requires_grad=True)
    hvd.reducescatter(leaf, op=hvd.Sum, process_set=OWN).sum().backward()
    assert leaf.grad.tolist() == [1.0] * OWN.size()


@check
def each_set_trains_a_model_of_its_own():
    model = network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += RANK
    hvd.broadcast_parameters(model.state_dict(), ROOT, process_set=OWN)
    start = parameters(network())
    assert close(parameters(model), [each + ROOT for each in start])
    optimizer = torch.optim.SGD(model.parameters(), 0.1 * RANK, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), process_set=OWN)
    hvd.broadcast_optimizer_state(optimizer, ROOT, process_set=OWN)
    assert optimizer.param_groups[0]["lr"] == 0.1 * ROOT
    alone = network()
    alone.load_state_dict(model.state_dict())
    plain = torch.optim.SGD(alone.parameters(), 0.1 * ROOT, momentum=0.9)
    for batch in batches(4):
        for each, stepper, rows in (
            (model, optimizer, slice(OWN.rank(), None, OWN.size())),
            (alone, plain, slice(None)),
        ):
            train_on(each, stepper, (batch[0][rows], batch[1][rows]))
        assert close(gradients(model), gradients(alone))
    assert close(parameters(model), parameters(alone))


@check
def ranks_outside_of_a_set_train_alone():
    model = network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), process_set=FIRST)
    layer = hvd.SyncBatchNorm(6, process_set=FIRST).double()
    if SECOND.included() and RANK == SIZE - 1:
        loss_of(torch.nn.Sequential(layer, model), batches(1)[0]).backward()
        optimizer.step()


@check
def a_set_that_is_not_registered_is_refused():
    unknown = hvd.ProcessSet([0])
    with raises(ValueError, "add_process_set"):
        hvd.DistributedOptimizer(torch.optim.SGD(network().parameters(), 0.1), process_set=unknown)
    with raises(ValueError, "add_process_set"):
        hvd.SyncBatchNorm(2, process_set=unknown)(torch.ones(3, 2))
    with raises(ValueError, "add_process_set"):
        hvd.broadcast_parameters(network().state_dict(), 0, process_set=unknown)


@check
def batches_are_normalised_within_the_set():
    layer, plain = hvd.SyncBatchNorm(2, process_set=OWN), torch.nn.BatchNorm1d(2)
    whole = torch.arange(4.0 * OWN.size()).reshape(-1, 2)
    start = 2 * OWN.rank()
    assert close([layer(whole[start : start + 2])], [plain(whole)[start : start + 2]], 1e-5)
    assert close([layer.running_var], [plain.running_var], 1e-5)


@check
def roots_are_ranks_of_the_set():
    other = SECOND if OWN is FIRST else FIRST
    with raises(ValueError, f"root_rank={other.ranks[0]}"):
        hvd.broadcast_parameters(network().state_dict(), other.ranks[0], process_set=OWN)


run_checks()
