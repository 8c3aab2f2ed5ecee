"""The parts of the torch face that need no world."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import distrun.torch as hvd
from distrun.errors import NotInitializedError
from distrun.runtime.collectives.consistency import _first_difference
from distrun.runtime.world import world
from distrun.torch.tensors import flat, is_flat, tensor_of

pytestmark = pytest.mark.gate


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


def test_the_first_difference_names_the_place_and_the_ranks():
    text = _first_difference([["a [1]", "b [2]"], ["a [1]", "b [3]"], ["a [1]"]], "the lists", [0, 2, 5])
    assert "place 1: b [2] on rank 0; b [3] on rank 2; missing on rank 5" in text
