"""Allreduce of sparse tensors equals the sum of what every rank gives, made dense."""

import random

import torch
from checking import check, close, run_checks, same_on_all_ranks
from expecting import raises

import distrun.torch as hvd
from distrun.errors import MismatchError

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()


def tensors(seed):
    """Each rank's tensor, of one random shape and dtype and as many sparse dimensions; known to all ranks."""
    torch.manual_seed(seed)
    choose = random.Random(seed)
    shape = [choose.choice((1, 3, 8)) for _ in range(choose.randint(1, 3))]
    sparse_dims = choose.randint(1, len(shape))
    dtype = choose.choice((torch.float64, torch.float32, torch.bfloat16, torch.int64))
    for _ in range(SIZE):
        count = choose.choice((0, 1, 5, 9))  # with repetitions: not coalesced
        indices = torch.stack([torch.randint(0, extent, (count,)) for extent in shape[:sparse_dims]])
        values = torch.randint(-8, 8, (count, *shape[sparse_dims:])).to(dtype)
        tensor = torch.sparse_coo_tensor(indices, values, shape)
        yield tensor.coalesce() if choose.random() < 0.3 else tensor


@check
def tensors_of_all_kinds_are_added_up():
    handles = []
    for seed in range(40):
        given = list(tensors(seed))
        op = (hvd.Average, hvd.Sum)[seed % 2]
        total = sum(tensor.to_dense().double() for tensor in given)
        if op is hvd.Average:
            total = (total / SIZE).to(given[0].dtype).double()
        name = f"sparse.{seed}" if seed % 3 else None
        handles.append((hvd.sparse_allreduce_async(given[RANK], name, op), total, given[RANK].dtype))
    for place, (handle, total, dtype) in enumerate(handles):
        result = handle() if place % 2 else hvd.synchronize(handle)
        assert hvd.poll(handle)
        assert result is handle()
        assert result.is_coalesced()
        assert result.dtype is dtype
        assert close([result.to_dense().double()], [total], 1e-2 if dtype is torch.bfloat16 else 1e-6)
        assert same_on_all_ranks([result.to_dense()])


@check
def ranks_that_disagree_are_told():
    with raises(MismatchError, "[*, 0, 3, 2]", "[*, 0, 4, 2]"):
        hvd.sparse_allreduce_async(torch.ones(3 + (RANK == 0), 2).to_sparse(1), "extents", hvd.Sum)()
    with raises(MismatchError):
        hvd.sparse_allreduce_async(torch.ones(3, 2).to_sparse(1 + (RANK == 0)), "dims", hvd.Sum)()


@check
def what_cannot_be_is_refused_in_a_sentence():
    with raises(ValueError, "op=max"):
        hvd.sparse_allreduce_async(torch.ones(2).to_sparse(), "max", hvd.Max)
    with raises(ValueError, "layout torch.strided", ".to_sparse()"):
        hvd.sparse_allreduce_async(torch.ones(2), "dense", hvd.Sum)
    with raises(ValueError, "not list"):
        hvd.sparse_allreduce_async([1.0], "list", hvd.Sum)


run_checks()
