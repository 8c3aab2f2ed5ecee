"""A world of one."""

import copy

import torch
from checking import check, run_checks
from expecting import raises

import distrun.torch as hvd

hvd.init()
assert hvd.size() == 1


@check
def collectives_are_copies():
    tensor = torch.arange(6.0).reshape(2, 3)
    for result in (
        hvd.allreduce(tensor),
        hvd.allgather(tensor),
        hvd.broadcast(tensor, 0),
        hvd.alltoall(tensor),
        hvd.reducescatter(tensor),
        hvd.grouped_allreduce([tensor, tensor.to(torch.bfloat16)])[0],
        hvd.synchronize(hvd.allreduce_async(tensor.t(), prescale_factor=2.0, postscale_factor=0.5)).t(),
    ):
        assert torch.equal(result, tensor)
        assert result.data_ptr() != tensor.data_ptr()
    assert hvd.allreduce_(tensor) is tensor
    columns = tensor.t()
    assert hvd.allreduce_(columns, op=hvd.Sum, prescale_factor=3.0) is columns
    assert torch.equal(tensor, 3 * torch.arange(6.0).reshape(2, 3))
    received, rows = hvd.alltoall(tensor, torch.tensor([2]))
    assert torch.equal(received, tensor)
    assert rows.tolist() == [2]
    with raises(ValueError, "on meta", ".cuda()"):
        hvd.allreduce(torch.ones(1, device="meta"))


@check
def a_wrapped_optimizer_has_no_hooks_and_all_methods():
    model = torch.nn.Linear(2, 2)
    plain = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    for each, stepper in ((model, optimizer), (plain, torch.optim.SGD(plain.parameters(), 0.1))):
        each(torch.ones(1, 2)).sum().backward()
        stepper.step()
        stepper.zero_grad(set_to_none=False)
    assert torch.equal(model.weight, plain.weight)
    assert not model.weight._post_accumulate_grad_hooks
    optimizer.synchronize()
    optimizer.set_backward_passes_per_step(2)
    with optimizer.no_sync(), optimizer.skip_synchronize():
        optimizer.step()
    assert optimizer.step(lambda: 3.0) == 3.0
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)


run_checks()
