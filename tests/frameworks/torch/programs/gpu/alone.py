"""A world of one with all tensors on the simulated GPU."""

import playing
import torch
from checking import check, run_checks
from expecting import raises

import distrun.torch as hvd

hvd.init()
playing.play()


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
def an_optimizer_is_as_it_was():
    layer = torch.nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), 0.1))
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    hvd.broadcast_parameters(layer.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)


run_checks()
