"""Objects with tensors in them, from GPU to GPU; here a GPU's memory is some of the host's."""

from __future__ import annotations

import pickle
import warnings

import cloudpickle
import pytest
import torch

from distrun.runtime.world.devices import Cpu, Cuda
from distrun.torch.state import objects


@pytest.mark.gate
@pytest.mark.parametrize("own", [Cuda(2), Cpu(0)])
def test_tensors_on_the_gpu_arrive_on_the_receivers_own(monkeypatch, own):
    on_gpu = [
        torch.nn.Parameter(torch.arange(6.0).reshape(2, 3)),
        torch.arange(6).to(torch.uint16)[2:],
        torch.eye(3).to_sparse(),
    ]
    on_host = torch.arange(3)
    parts = [*on_gpu[:2], on_gpu[2]._indices(), on_gpu[2]._values()]
    pointers = {part.untyped_storage().data_ptr() for part in parts}
    places = []

    def move(storage, where):
        places.append(str(where))
        return objects._typed(storage._untyped_storage.clone(), storage.dtype)

    monkeypatch.setattr(objects, "_moved", move)
    assert not objects._is_on_gpu(on_host._typed_storage())
    monkeypatch.setattr(objects, "_is_on_gpu", lambda storage: storage._untyped_storage.data_ptr() in pointers)
    monkeypatch.setattr(objects.world, "device", lambda: own)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sent = cloudpickle.dumps(objects._Parcel({"gpu": on_gpu, "host": on_host, "function": lambda: 7}))
        assert places == ["cpu"] * 4
        received = pickle.loads(sent)
    assert places[4:] == (["cuda:2"] * 4 if own.name == "cuda" else [])
    assert isinstance(received["gpu"][0], torch.nn.Parameter)
    for one, other in zip([*on_gpu, on_host], [*received["gpu"], received["host"]], strict=True):
        assert one.dtype is other.dtype
        assert torch.equal(one.to_dense(), other.to_dense())
    assert received["function"]() == 7
