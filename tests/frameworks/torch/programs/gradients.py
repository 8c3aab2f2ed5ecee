"""Gradients through the differentiable collectives, against formulas."""

import torch
from checking import check, run_checks
from expecting import raises

import distrun.torch as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()


def weights(shape, rank=RANK):
    """The factor of each rank's result in the sum: the gradient that arrives there."""
    return (torch.arange(torch.Size(shape).numel(), dtype=torch.float64) + 1 + rank).reshape(shape)


def all_weights(shape):
    return torch.stack([weights(shape, rank) for rank in range(SIZE)])


def gradient_of(function, *tensors):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    results = function(*leaves)
    results = results if isinstance(results, (list, tuple)) else [results]
    sum((result * weights(result.shape)).sum() for result in results).backward()
    return [leaf.grad for leaf in leaves]


ONES = torch.ones(3, 2, dtype=torch.float64)


@check
def allreduce_reduces_the_gradient_the_same_way():
    (gradient,) = gradient_of(lambda t: hvd.allreduce(t), ONES)
    assert torch.allclose(gradient, all_weights((3, 2)).mean(0))
    (gradient,) = gradient_of(lambda t: hvd.allreduce(t, name="sum", op=hvd.Sum), ONES)
    assert torch.allclose(gradient, all_weights((3, 2)).sum(0))
    (gradient,) = gradient_of(lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=3, postscale_factor=0.5), ONES)
    assert torch.allclose(gradient, all_weights((3, 2)).sum(0) * 1.5)
    one, two = gradient_of(lambda a, b: hvd.grouped_allreduce([a, b]), ONES, ONES[:1])
    assert torch.allclose(one, all_weights((3, 2)).mean(0))
    assert torch.allclose(two, all_weights((1, 2)).mean(0))


@check
def allreduce_of_another_kind_refuses_to_be_differentiated():
    result = hvd.allreduce(ONES.clone().requires_grad_(), op=hvd.Max)
    with raises(ValueError, "op=max has no gradient"):
        result.sum().backward()


@check
def allreduce_differentiates_through_a_compressor():
    class Half:
        @staticmethod
        def compress(tensor):
            return tensor * 0.5, None

        @staticmethod
        def decompress(tensor, ctx):
            return tensor * 2

    (gradient,) = gradient_of(lambda t: hvd.allreduce(t, compression=Half), ONES)
    assert torch.allclose(gradient, all_weights((3, 2)).mean(0))


@check
def allgather_returns_each_rank_its_own_rows_averaged():
    rows = RANK + 1
    total = sum(range(1, SIZE + 1))
    start = sum(range(1, RANK + 1))
    (gradient,) = gradient_of(hvd.allgather, torch.ones(rows, 2, dtype=torch.float64))
    assert torch.allclose(gradient, all_weights((total, 2)).mean(0)[start : start + rows])
    one, two = gradient_of(lambda a, b: hvd.grouped_allgather([a, b]), ONES[:rows].new_ones(rows), ONES)
    assert torch.allclose(one, all_weights((total,)).mean(0)[start : start + rows])
    assert torch.allclose(two, all_weights((3 * SIZE, 2)).mean(0)[3 * RANK : 3 * RANK + 3])
    (gradient,) = gradient_of(hvd.allgather, torch.ones(rows, 0, dtype=torch.float64))
    assert gradient.shape == (rows, 0)


@check
def broadcast_returns_the_gradients_to_the_root():
    (gradient,) = gradient_of(lambda t: hvd.broadcast(t, 1), ONES)
    assert torch.allclose(gradient, all_weights((3, 2)).mean(0) if RANK == 1 else torch.zeros_like(ONES))


@check
def alltoall_returns_each_gradient_to_where_its_row_came_from():
    splits = [RANK + 1] * SIZE
    rows = sum(range(1, SIZE + 1))  # what each rank receives
    (gradient,) = gradient_of(lambda t: hvd.alltoall(t, splits)[0], torch.ones(sum(splits), 2, dtype=torch.float64))
    start = sum(range(1, RANK + 1))
    expected = torch.cat([weights((rows, 2), rank)[start : start + RANK + 1] for rank in range(SIZE)])
    assert torch.equal(gradient, expected)
    (gradient,) = gradient_of(hvd.alltoall, torch.ones(SIZE, dtype=torch.float64))
    assert torch.equal(gradient, torch.stack([weights((SIZE,), rank)[RANK] for rank in range(SIZE)]))


@check
def reducescatter_gathers_the_gradients():
    shares = [2 if rank == 0 else 1 for rank in range(SIZE)]
    parts = torch.cat([weights((rows, 2), rank) for rank, rows in enumerate(shares)])
    tensor = torch.ones(SIZE + 1, 2, dtype=torch.float64)
    (gradient,) = gradient_of(lambda t: hvd.reducescatter(t, op=hvd.Sum, prescale_factor=3.0), tensor)
    assert torch.allclose(gradient, parts * 3)
    (gradient,) = gradient_of(hvd.reducescatter, tensor)
    assert torch.allclose(gradient, parts / SIZE)
    for gradient in gradient_of(lambda a, b: hvd.grouped_reducescatter([a, b], name="group"), tensor, tensor):
        assert torch.allclose(gradient, parts / SIZE)


@check
def gradients_that_are_not_contiguous_flow_back_too():
    leaf = torch.ones(3, 4, requires_grad=True)
    hvd.allreduce(leaf).t().sum(0).sum().backward()
    assert torch.equal(leaf.grad, torch.ones(3, 4))
    leaf = torch.ones(3, requires_grad=True)
    hvd.allgather(leaf).sum().backward()  # an expanded gradient
    assert torch.equal(leaf.grad, torch.ones(3))


@check
def nothing_is_recorded_where_nothing_needs_a_gradient():
    leaf = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert not hvd.allreduce(leaf).requires_grad
    assert not hvd.allreduce(leaf.detach()).requires_grad
    assert hvd.allreduce(leaf).requires_grad


run_checks()
