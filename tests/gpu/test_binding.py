"""Each framework uses the GPU of its rank, unless the script has chosen one; a choice that comes too late is
reported."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace

import pytest

from distrun.runtime.collectives import initialisation
from distrun.runtime.collectives.call import Call
from distrun.runtime.engine.single_process import SingleProcessEngine
from distrun.runtime.gpu.config import GpuConfig
from distrun.runtime.world import capabilities, world
from distrun.runtime.world.devices import Cpu, Cuda

pytestmark = pytest.mark.gate


@pytest.fixture
def bound_to(monkeypatch):
    """Make this process a rank that is bound to a device."""

    def bind(device, ranks=2):
        monkeypatch.setattr(initialisation, "init", lambda *arguments: None)
        monkeypatch.setattr(world, "device", lambda: device)
        monkeypatch.setattr(world, "local_size", lambda: ranks)

    return bind


@pytest.fixture
def warnings(caplog, monkeypatch):
    """The warnings of distrun, whose log does not propagate."""
    monkeypatch.setattr(logging.getLogger("distrun"), "propagate", True)
    return caplog


# TensorFlow -----------------------------------------------------------------------------------------------------------


class TensorFlowConfig:
    """tf.config with three GPUs: what must be chosen before TensorFlow starts, cannot be afterwards."""

    def __init__(self, gpus=3):
        self.gpus = [f"GPU {number}" for number in range(gpus)]
        self.visible = list(self.gpus)
        self.growth = dict.fromkeys(self.gpus)
        self.has_started = False
        self.experimental = self

    def list_physical_devices(self, kind):
        return list(self.gpus)

    def get_visible_devices(self, kind):
        return list(self.visible)

    def set_visible_devices(self, devices, kind):
        devices = devices if isinstance(devices, list) else [devices]
        self._change(devices != self.visible)
        self.visible = devices

    def get_memory_growth(self, gpu):
        return self.growth[gpu]

    def set_memory_growth(self, gpu, enable):
        self._change(self.growth[gpu] != enable)
        self.growth[gpu] = enable

    def _change(self, is_one):
        if is_one and self.has_started:
            raise RuntimeError("Visible devices cannot be modified after being initialized")


@pytest.fixture
def tensorflow(monkeypatch):
    """Return `bind` of TensorFlow, and its configuration."""
    pytest.importorskip("tensorflow")
    from distrun.graphs.tensorflow import binding

    config = TensorFlowConfig()
    monkeypatch.setattr(binding, "tf", SimpleNamespace(config=config))
    return binding.bind, config


def test_tensorflow_sees_the_gpu_of_its_rank_and_takes_all_of_it(tensorflow, bound_to):
    bind, config = tensorflow
    bound_to(Cuda(1))
    bind()
    assert config.visible == ["GPU 1"]
    assert config.growth["GPU 1"] is None
    config.has_started = True
    bind()  # init() again


def test_tensorflow_takes_what_it_needs_of_a_gpu_that_ranks_share(tensorflow, bound_to, warnings):
    bind, config = tensorflow
    bound_to(Cuda(2, sharers=2))
    bind()
    assert config.growth == {"GPU 0": None, "GPU 1": None, "GPU 2": True}
    assert not warnings.records


def test_a_script_for_horovod_chooses_the_same_once_more(tensorflow, bound_to):
    bind, config = tensorflow
    bound_to(Cuda(1))
    bind()
    for gpu in config.list_physical_devices("GPU"):
        config.set_memory_growth(gpu, True)
    config.set_visible_devices(config.list_physical_devices("GPU")[1], "GPU")
    assert config.visible == ["GPU 1"]


def test_what_the_script_has_chosen_before_stays(tensorflow, bound_to):
    bind, config = tensorflow
    bound_to(Cuda(1))
    config.set_visible_devices(["GPU 2"], "GPU")
    bind()
    assert config.visible == ["GPU 2"]


def test_a_tensorflow_that_has_started_on_all_gpus_is_told_of(tensorflow, bound_to, warnings):
    bind, config = tensorflow
    bound_to(Cuda(1))
    config.has_started = True
    bind()
    (record,) = warnings.records
    assert "takes memory of GPUs that belong to other ranks: call init() before" in record.getMessage()


def test_a_tensorflow_without_cuda_and_ranks_on_the_cpu_are_left_alone(tensorflow, bound_to, warnings):
    bind, config = tensorflow
    bound_to(Cpu(0))
    bind()
    assert config.visible == config.gpus
    config.gpus = config.visible = []
    bound_to(Cuda(1))
    bind()
    assert config.visible == []
    assert not warnings.records


# JAX ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def jax(monkeypatch):
    """Return `bind` of JAX, and what it has told JAX; with `devices`, JAX has started with that many."""
    pytest.importorskip("jax")
    from distrun.jax import ranks

    told = SimpleNamespace(options={}, devices=0)
    stand_in = SimpleNamespace(
        config=SimpleNamespace(update=told.options.__setitem__),
        default_backend=lambda: "gpu",
        local_device_count=lambda: told.devices,
    )
    monkeypatch.setattr(ranks, "jax", stand_in)
    monkeypatch.setattr(ranks, "_has_started", lambda: told.devices > 0)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("XLA_")}
    monkeypatch.setattr(ranks.os, "environ", environ)
    return ranks.bind, told, environ


def test_jax_sees_the_gpu_of_its_rank(jax, bound_to):
    bind, told, environ = jax
    bound_to(Cuda(1))
    bind()
    assert told.options == {"jax_cuda_visible_devices": "1"}
    assert not any(name.startswith("XLA_") for name in environ)


def test_jax_takes_its_part_of_a_gpu_that_ranks_share(jax, bound_to):
    bind, told, environ = jax
    bound_to(Cuda(0, sharers=4))
    bind()
    assert told.options == {"jax_cuda_visible_devices": "0"}
    assert float(environ["XLA_PYTHON_CLIENT_MEM_FRACTION"]) == pytest.approx(0.75 / 4, abs=1e-3)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", ".4"),
        ("XLA_CLIENT_MEM_FRACTION", ".4"),  # together with the other one JAX refuses to start
        ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
    ],
)
def test_what_variables_say_of_jaxs_memory_stays(jax, bound_to, variable, value):
    bind, _, environ = jax
    environ[variable] = value
    bound_to(Cuda(0, sharers=4))
    bind()
    assert {name: value for name, value in environ.items() if name.startswith("XLA_")} == {variable: value}


def test_a_jax_that_has_started_on_all_gpus_is_told_of(jax, bound_to, warnings):
    bind, told, _ = jax
    bound_to(Cuda(1))
    told.devices = 2
    bind()
    assert told.options == {}
    (record,) = warnings.records
    assert "call init() before JAX computes anything" in record.getMessage()
    told.devices = 1  # init() again
    bind()
    assert len(warnings.records) == 1


@pytest.mark.parametrize(("device", "ranks"), [(Cpu(0), 2), (Cuda(0), 1)], ids=str)
def test_jax_is_left_alone_on_the_cpu_and_by_a_single_rank(jax, bound_to, device, ranks):
    bind, told, _ = jax
    bound_to(device, ranks)
    bind()
    assert told.options == {}


def test_whether_jax_has_started_is_known():
    installed = pytest.importorskip("jax")
    from distrun.jax import ranks

    installed.devices()
    assert ranks._has_started()


# Keras ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "place"),
    [
        ("tensorflow", "distrun.graphs.tensorflow.binding.bind"),
        ("jax", "distrun.jax.init"),
        ("torch", "distrun.torch.init"),
        ("numpy", None),
    ],
)
def test_keras_binds_its_backend(backend, place, bound_to, monkeypatch):
    pytest.importorskip("keras")
    pytest.importorskip("tensorflow")
    from distrun.keras import ranks

    called = []
    bound_to(Cuda(1))
    monkeypatch.setattr(ranks.CHOSEN, "BACKEND", backend)
    if place:
        pytest.importorskip(backend)
        monkeypatch.setattr(place, lambda: called.append(place))
    ranks.init()
    assert called == ([place] if place else [])


def test_gradients_of_kerass_torch_backend_are_reduced_on_the_gpu_and_who_has_one_is_told_on_the_host(
    simulated, bound_to, monkeypatch
):
    torch = pytest.importorskip("torch")
    pytest.importorskip("tensorflow")  # the backend that Keras has here
    pytest.importorskip("keras")
    from distrun.keras import torch_gradients
    from distrun.torch import cuda

    engine = SingleProcessEngine(GpuConfig(0, "host"))
    requests = []
    monkeypatch.setattr(
        engine,
        "submit",
        lambda handle: (requests.append(handle.request), SingleProcessEngine.submit(engine, handle))[1],
    )
    monkeypatch.setattr(engine, "run", engine.submit)
    monkeypatch.setattr(world, "engine", lambda: engine)
    bound_to(Cuda(0))
    # Matrices in host memory play a GPU's.
    monkeypatch.setattr(cuda, "kind", lambda tensor: "cuda" if tensor.dim() == 2 else "cpu")
    monkeypatch.setattr(cuda, "as_array", lambda tensor: not_on_host() if tensor.dim() == 2 else tensor.numpy())
    monkeypatch.setattr(cuda.TorchArena, "current_stream", lambda arena: 0)

    def not_on_host():
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    variables = [SimpleNamespace(value=torch.nn.Parameter(torch.zeros(2, 3))) for _ in range(3)]
    variables[0].value.grad = torch.ones(2, 3)
    gradients = [variables[0].value.grad, torch.full((3, 2), 2.0).T, None]
    reduced = torch_gradients.reduce(gradients, variables, Call("allreduce", "step"), False)
    assert reduced[0] is gradients[0]
    assert reduced[1].tolist() == [[2.0] * 3] * 2
    assert reduced[2] is None
    assert [(request.device, request.name) for request in requests] == [("cuda", "step.gpu"), ("cpu", "step")]
    engine.shutdown()


# What is there --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("simulated")
def test_cuda_is_built_where_cupy_is(monkeypatch):
    capabilities.nccl_built.cache_clear()
    monkeypatch.setenv("SIMULATED_NCCL_VERSION", "23003")
    assert capabilities.cuda_built()
    assert capabilities.nccl_built() == 23003
    capabilities.nccl_built.cache_clear()


def test_a_cupy_that_is_broken_or_missing_is_no_nccl(monkeypatch):
    from distrun.runtime.gpu import transport_choice as choice

    def broken():
        raise RuntimeError("ncclUnhandledCudaError")

    for version in (broken, lambda: (0, "cupy cannot be imported")):
        capabilities.nccl_built.cache_clear()
        monkeypatch.setattr(choice, "nccl_version", version)
        assert capabilities.nccl_built() == 0
    capabilities.nccl_built.cache_clear()
