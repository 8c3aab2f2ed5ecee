"""Tensors on the GPU: the programs of the CPU tests on the simulated GPU and, where there is one, on a real one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from session.tiers import one_in_gate
from without_launcher.elastic_supervisor import Supervisor

from distrun.errors import UsageError
from distrun.runtime.world.devices import Cpu, Cuda
from distrun.torch import cuda, ranks
from distrun.torch.gradients import device_bucket
from distrun.torch.gradients.arrivals import Arrivals

pytestmark = pytest.mark.gate
PROGRAMS = Path(__file__).parent / "programs" / "gpu"
HERE = ("collectives", "training", "parameters", "sparse_tensors", "gradients", "state", "passes", "normalization")
DIRECT = {"DISTRUN_DIRECT_BUCKETS": "1"}
real = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU, or torch is built without CUDA")


@pytest.mark.parametrize("programs", one_in_gate(HERE[:2], HERE[2:]), ids=" ".join)
def test_what_works_on_the_cpu_works_on_the_gpu(gpu_job, programs):
    gpu_job(PROGRAMS / "on_gpu.py", 2, *programs)


@pytest.mark.full
@pytest.mark.parametrize(("size", "programs"), [(3, ("process_sets", "uneven_data")), (1, ("alone",))], ids=str)
def test_some_of_the_ranks_or_one_alone_work_on_the_gpu(gpu_job, size, programs):
    gpu_job(PROGRAMS / "on_gpu.py", size, *programs)


@pytest.mark.full
@pytest.mark.parametrize(("size", "program"), [((1, 1), "quantised"), ((1, 2), "residuals")], ids=str)
def test_gradients_travel_quantised_between_hosts_and_what_they_lose_is_made_up_for(gpu_job, size, program, tmp_path):
    gpu_job(PROGRAMS / "on_gpu.py", size, f"{program}:{tmp_path}", SIMULATED_GPU_JITTER="0")


def test_streams_graphs_and_models_half_on_the_cpu(gpu_job):
    gpu_job(PROGRAMS / "streams.py", (1, 1), SIMULATED_GPU_JITTER="100")


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.gate)])
def test_groups_that_change_under_their_name_are_reduced_as_they_are(gpu_job, size):
    gpu_job(PROGRAMS / "repeated.py", size)


def test_direct_passes_train_as_negotiated_ones_do(gpu_job, tmp_path):
    gpu_job(PROGRAMS / "direct.py", 2, "train", str(tmp_path), **DIRECT)


@pytest.mark.parametrize("how", one_in_gate(["killed"], ["elsewhere"], ["broken"]), ids=" ".join)
def test_a_direct_pass_that_a_rank_does_not_end_fails_on_all_ranks(gpu_job, how, tmp_path):
    said = gpu_job(PROGRAMS / "direct.py", 2, *how, str(tmp_path), fail=True, DISTRUN_STALL_TIMEOUT="5", **DIRECT)
    assert "rank 0 has seen it" in said
    assert ("rank 1 has seen it" in said) == (how != ["killed"])


@pytest.mark.full
@pytest.mark.parametrize(
    ("size", "programs"),
    [*((2, [each]) for each in HERE[1:]), (3, ["process_sets", "uneven_data"])],
    ids=str,
)
def test_what_works_negotiated_works_direct(gpu_job, size, programs):
    gpu_job(PROGRAMS / "on_gpu.py", size, *programs, DISTRUN_BUCKET_BYTES="64", **DIRECT)


@pytest.mark.full
def test_streams_and_graphs_with_direct_passes(gpu_job):
    gpu_job(PROGRAMS / "streams.py", (1, 1), SIMULATED_GPU_JITTER="100", DISTRUN_BUCKET_BYTES="64", **DIRECT)


@pytest.mark.full
def test_a_graph_that_was_captured_before_ranks_came_or_went_is_refused(gpu_environ, tmp_path):
    environ = gpu_environ(2)
    environ["PYTHONPATH"] += f"{os.pathsep}{PROGRAMS.parent}"
    with Supervisor([sys.executable, str(PROGRAMS / "graphs.py")], tmp_path, environ) as supervisor:
        supervisor.begin(2)
        for rank in supervisor.members:
            rank.await_step(1)
        supervisor.replace(1)
        for rank in supervisor.members:
            rank.await_step(2)
        supervisor.prepare()
        supervisor.assign(supervisor.members)
        supervisor.finish(2)


@pytest.mark.lab
@pytest.mark.gpu
@real
@pytest.mark.parametrize(
    ("size", "program"),
    [
        *((2, f"gpu/on_gpu real {each}") for each in (*HERE, "compiled")),
        ((1, 1), "gpu/on_gpu real quantised residuals:FOLDER"),
        (2, "gpu/real"),
    ],
    ids=str,
)
def test_what_works_on_the_cpu_or_a_simulated_gpu_works_on_real_ones(job, size, program, tmp_path):
    environ = {} if size == 2 else {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}  # the hosts may be one GPU in truth
    name, *arguments = program.replace("FOLDER", str(tmp_path)).split()
    job(name, size, *arguments, DISTRUN_SHARE_GPUS="1", **environ)


# What needs no rank ---------------------------------------------------------------------------------------------------


def on(device: str) -> SimpleNamespace:
    """A stand-in for a tensor on a device, with the attributes that `check` reads."""
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
    monkeypatch.setattr(ranks.initialisation, "init", lambda *arguments: None)
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
    monkeypatch.setattr(cuda, "_raw_stream", lambda index: 0xA00)
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
    calls.clear()
    arena.empty(3, np.dtype("bool"), 0xA00)
    assert calls == [torch.device("cuda", 1)], "it is the current one"


def test_the_current_stream_is_asked_for_in_the_cheapest_way_there_is(monkeypatch):
    monkeypatch.setattr(cuda, "_raw_stream", lambda index: 0x10 + index)
    assert cuda.TorchArena(3).current_stream() == 0x13
    monkeypatch.setattr(cuda, "_raw_stream", None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=0x20 + index))
    assert cuda.TorchArena(3).current_stream() == 0x23


def test_gradients_of_other_streams_are_joined_and_their_memory_goes_back_after_that():
    log = []
    driver = SimpleNamespace(
        record=lambda stream: f"event {stream}", wait=lambda stream, event: log.append((stream, event))
    )
    streams = iter((5, 7, 5, 7))
    arrivals = Arrivals(SimpleNamespace(current_stream=lambda: next(streams)))
    for _ in range(3):
        arrivals.note()
    others = arrivals.join(driver, 7)
    log.append("read")
    arrivals.release(driver, 7, others)
    assert log == [(7, "event 5"), "read", (5, "event 7")]
    log.clear()
    arrivals.note()
    assert not arrivals.join(driver, 7)
    arrivals.add(5)
    arrivals.clear()
    assert not arrivals.join(driver, 7)
    assert not log


def test_gradients_that_lie_as_their_parameter_does_are_copied_as_they_are(monkeypatch):
    monkeypatch.setattr(device_bucket, "empty", lambda kind, count, dtype: torch.empty(count, dtype=dtype))
    convolution = torch.nn.Conv2d(8, 4, 1)
    for layout in (torch.contiguous_format, torch.channels_last):
        parameters = list(convolution.to(memory_format=layout).parameters())
        buffer = device_bucket._Buffer(parameters, 1.0, 0.0)
        for strides in ((8, 1, 1, 1), (8, 1, 8, 8), (8, 1, 1, 1)):
            assert buffer.is_laid_out(torch.empty_strided((4, 8, 1, 1), strides), 0)
        assert buffer.is_laid_out(torch.ones(4), 1)
        for gradient in (
            torch.empty_strided((4, 8, 1, 1), (1, 4, 1, 1)),
            torch.ones(4, 8, 1, 1).half(),
            torch.ones(4, 8, 1, 1).to_sparse(),
            torch._neg_view(torch.ones(4, 8, 1, 1)),
        ):
            assert not buffer.is_laid_out(gradient, 0)
