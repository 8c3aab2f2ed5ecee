"""The torch face in a world of one, and the parts of it that need no world."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch

import distrun.torch as hvd
from distrun.errors import NotInitializedError, UsageError
from distrun.runtime.collectives.compressors import Compression
from distrun.runtime.collectives.consistency import _first_difference
from distrun.runtime.world import world
from distrun.torch.reductions import reduce_op
from distrun.torch.tensors import flat, is_flat, tensor_of

pytestmark = pytest.mark.gate


@pytest.fixture
def alone(monkeypatch):
    for variable in ("DISTRUN_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"):
        monkeypatch.delenv(variable, raising=False)
    hvd.init()
    assert hvd.size() == 1
    yield
    hvd.shutdown()


def test_before_init_the_face_says_so():
    assert not world.is_initialized()
    with pytest.raises(NotInitializedError, match="call distrun"):
        hvd.rank()
    with pytest.raises(NotInitializedError):
        hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1))


def test_importing_the_face_loads_no_mpi_and_elastic_training_when_it_is_asked_for():
    code = """
import sys, distrun.torch as hvd
assert "mpi4py" not in sys.modules
assert "distrun.torch.elastic" not in sys.modules and "distrun.elastic" not in sys.modules
hvd.elastic.TorchState, hvd.elastic.run, hvd.elastic.State, hvd.elastic.ObjectState
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'something'"):
        hvd.something()


def test_collectives_of_one_rank_are_copies(alone):
    tensor = torch.arange(6.0).reshape(2, 3)
    for result in (
        hvd.allreduce(tensor),
        hvd.allgather(tensor),
        hvd.broadcast(tensor, 0),
        hvd.alltoall(tensor),
        hvd.reducescatter(tensor),
        hvd.grouped_allreduce([tensor])[0],
    ):
        assert torch.equal(result, tensor)
        assert result.data_ptr() != tensor.data_ptr()
    assert hvd.allreduce_(tensor) is tensor


def test_a_wrapped_optimizer_of_one_rank_has_no_hooks_and_all_methods(alone):
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


def test_neither_average_nor_op_means_average():
    assert reduce_op(None, None) is hvd.Average
    assert reduce_op(False, None) is hvd.Sum
    with pytest.raises(UsageError, match="average=False and op=sum"):
        reduce_op(False, hvd.Sum)


def test_flat_arrays_share_the_memory_of_contiguous_tensors():
    tensor = torch.ones(2, 3, dtype=torch.bfloat16)
    array = flat(tensor)
    assert array.dtype.name == "uint16"
    array[:] = 0x4000  # 2.0
    assert torch.equal(tensor, torch.full((2, 3), 2.0, dtype=torch.bfloat16))
    assert torch.equal(tensor_of(array, torch.bfloat16, (3, 2)), torch.full((3, 2), 2.0, dtype=torch.bfloat16))
    assert is_flat(tensor)
    assert not is_flat(tensor.t())
    assert flat(torch.arange(6)[::2]).tolist() == [0, 2, 4]


def test_compressors_called_by_hand_cast_floats_only():
    narrow, context = Compression.fp16.compress(torch.ones(2))
    assert narrow.dtype is torch.float16
    assert Compression.fp16.decompress(narrow, context).dtype is torch.float32
    assert Compression.fp16.compress(torch.ones(2, dtype=torch.int64))[0].dtype is torch.int64


def test_the_first_difference_names_the_place_and_the_ranks():
    text = _first_difference([["a [1]", "b [2]"], ["a [1]", "b [3]"], ["a [1]"]], "the lists", [0, 2, 5])
    assert "place 1: b [2] on rank 0; b [3] on rank 2; missing on rank 5" in text
