"""Tensors on the GPU: the programs of the CPU tests on the simulated GPU and, where there is one, on a real one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from distrun.errors import UsageError
from distrun.runtime.devices.cpu import Cpu
from distrun.runtime.devices.cuda import Cuda
from distrun.torch import cuda, ranks
from distrun.torch.optimizer import FIRST_BUCKET_BYTES, _bytes

PROGRAMS = Path(__file__).parent / "programs"
HERE = ("collectives", "gradients", "state", "training", "passes", "parameters")
real = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU, or torch is built without CUDA")


def test_what_works_on_the_cpu_works_on_the_gpu(gpu_job):
    gpu_job(PROGRAMS / "on_gpu.py", 2, *HERE)


def test_streams_graphs_and_models_half_on_the_cpu(gpu_job):
    gpu_job(PROGRAMS / "cuda_streams.py", (1, 1), SIMULATED_GPU_JITTER="100")


def test_a_world_of_one(gpu_job):
    gpu_job(PROGRAMS / "cuda_alone.py", 1)


@pytest.mark.gpu
@real
@pytest.mark.parametrize("program", [*HERE, "compiled"])
def test_what_works_on_the_cpu_works_on_real_gpus(job, program):
    job("on_gpu", 2, "real", program, DISTRUN_SHARE_GPUS="1")


@pytest.mark.gpu
@real
def test_streams_graphs_and_models_half_on_the_cpu_on_real_gpus(job):
    job("cuda_real", 2, DISTRUN_SHARE_GPUS="1")


# What needs no rank ---------------------------------------------------------------------------------------------------------


def on(device: str) -> SimpleNamespace:
    """What `check` looks at of a tensor on a device."""
    return SimpleNamespace(device=torch.device(device))


def test_a_tensor_on_another_gpu_than_the_ranks_own_is_refused(monkeypatch):
    monkeypatch.setattr(cuda.world, "device", lambda: Cuda(1))
    cuda.check(on("cuda:1"))
    with pytest.raises(
        UsageError, match=r"on cuda:0 cannot travel, as the GPU of this rank is cuda:1: use \.to\('cuda:1'\)"
    ):
        cuda.check(on("cuda:0"))
    with pytest.raises(UsageError, match=r"on mps:0 cannot travel.*use \.cpu\(\) or \.cuda\(\)"):
        cuda.check(on("mps:0"))


def test_init_makes_the_ranks_gpu_torchs_current_one(monkeypatch):
    bound = []
    monkeypatch.setattr(torch.cuda, "set_device", bound.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ranks.world, "init", lambda: None)
    for device in (Cuda(3), Cpu(0)):
        monkeypatch.setattr(ranks.world, "device", lambda device=device: device)
        ranks.init()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cuda.bind(2)
    assert bound == [3]


def test_memory_comes_from_the_pool_of_the_stream_that_is_asked_for(monkeypatch):
    calls = []

    class Noted:
        def __init__(self, *what):
            self.what = what

        def __enter__(self):
            calls.append(("enter", *self.what))

        def __exit__(self, *_):
            calls.append(("exit", *self.what))

    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda count, dtype, device: calls.append(device) or empty(count, dtype=dtype))
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda what, name=name: Noted(name, what))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: f"default of {device}")
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda pointer, device: f"{pointer:#x} of {device}")
    arena = cuda.TorchArena(1)
    for stream, name in ((0, "default of 1"), (0xF00, "0xf00 of 1")):
        calls.clear()
        buffer = arena.empty(3, np.dtype("uint16"), stream)
        assert calls == [
            *[("enter", "device", 1), ("enter", "stream", name), torch.device("cuda", 1)],
            *[("exit", "stream", name), ("exit", "device", 1)],
        ]
        assert (buffer.size, buffer.dtype.name, buffer.owner.dtype) == (3, "uint16", torch.uint16)
        assert buffer.pointer == buffer.owner.data_ptr()


def test_the_first_buckets_size_can_be_set(monkeypatch):
    monkeypatch.setenv(FIRST_BUCKET_BYTES, "700")
    assert _bytes(FIRST_BUCKET_BYTES, 5) == 700
    monkeypatch.setenv(FIRST_BUCKET_BYTES, "1M")
    with pytest.raises(UsageError, match="DISTRUN_FIRST_BUCKET_BYTES='1M' is no number of bytes"):
        _bytes(FIRST_BUCKET_BYTES, 5)
