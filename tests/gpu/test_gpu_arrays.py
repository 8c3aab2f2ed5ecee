"""Arrays on a GPU in distrun's own collectives, on the simulated GPU: cupy's, and what others show by their
protocols."""

from __future__ import annotations

import ctypes
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from session.tiers import one_in_gate

from distrun.errors import UsageError
from distrun.runtime.gpu import arrays
from distrun.runtime.gpu.arrays import gpu_array, is_on_gpu

pytestmark = pytest.mark.gate
PROGRAM = Path(__file__).parent / "programs" / "gpu_arrays.py"


@pytest.mark.parametrize("size", one_in_gate(2, (2, 1), chosen=1), ids=str)
def test_collectives_on_arrays_of_gpus(gpu_job, size):
    ranks = size if isinstance(size, int) else sum(size)
    assert gpu_job(PROGRAM, size).count("fine") == ranks


def test_ranks_that_share_a_gpu_and_the_way_through_host_memory(gpu_job):
    sharing = {"SIMULATED_GPUS": "1", "DISTRUN_SHARE_GPUS": "1", "DISTRUN_GPU_BACKEND": "staged"}
    assert gpu_job(PROGRAM, 2, **sharing).count("fine") == 2


def test_a_world_of_one(gpu_job):
    assert gpu_job(PROGRAM, 1).count("fine") == 1


# What is on a GPU -----------------------------------------------------------------------------------------------------


class Exporting:
    """An object that says that it lies on a device, and exports a numpy array."""

    def __init__(self, *device, array=None, error=None):
        self._device, self._array, self._error = device, array, error

    def __dlpack_device__(self):
        if not self._device:
            raise BufferError("spread over two devices")
        return self._device

    def __dlpack__(self, *, stream, **options):
        if self._error is not None:
            raise self._error
        return self._array.__dlpack__(**options)


class Showing:
    __cuda_array_interface__ = {}  # noqa: RUF012


TensorFlows = type("EagerTensor", (Exporting,), {"__module__": "tensorflow.python.framework.ops"})


@pytest.mark.parametrize(
    ("tensor", "is_so"),
    [
        (np.ones(3), False),
        (np.ma.masked_array([1.0]), False),
        (1.0, False),
        ([1.0], False),
        (Exporting(1, 0), False),
        (Exporting(2, 1), True),
        (Exporting(3, 0), False),  # page-locked host memory
        (Exporting(), False),
        (TensorFlows(2, 0), False),
        (Showing(), True),
    ],
    ids=repr,
)
def test_what_is_on_a_gpu_is_told_without_cupy(tensor, is_so, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it would fail
    assert is_on_gpu(tensor) is is_so


def test_torch_tensors_on_the_host_are_not_and_cuda_is_not_asked(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: pytest.fail("that may create a context"))
    assert not is_on_gpu(torch.ones(2, requires_grad=True))


# Arrays of others -----------------------------------------------------------------------------------------------------


def driver_with(from_dlpack):
    cupy = SimpleNamespace(ndarray=SimpleNamespace, from_dlpack=from_dlpack)
    return SimpleNamespace(cupy=cupy, index=0, use=nullcontext())


def exported(shown):
    """Import from an object as cupy does."""
    shown.__dlpack__(stream=1, max_version=(1, 0), copy=None)
    return np.ones(2)


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="this numpy does not export DLPack 1")
def test_an_export_marked_read_only_is_not_worked_on_in_place():
    driver = driver_with(exported)
    assert gpu_array(Exporting(2, 0, array=np.ones(2)), driver, in_place=True).is_foreign
    fixed = Exporting(2, 0, array=read_only(np.ones(2)))
    assert gpu_array(fixed, driver).given is fixed
    with pytest.raises(
        UsageError, match=r"needs a writable array, and this .* Exporting is read-only: use the form without"
    ):
        gpu_array(fixed, driver, in_place=True)


def test_an_export_of_the_older_kind_cannot_be_marked():
    assert arrays._is_read_only(np.ones(2).__dlpack__()) is False


def test_the_mark_is_read_where_dlpack_has_it():
    class Version(ctypes.Structure):  # dlpack.h
        _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]

    class Versioned(ctypes.Structure):
        _fields_ = [
            *(("version", Version), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)),
            ("flags", ctypes.c_uint64),
        ]

    assert Versioned.flags.offset == arrays._FLAGS_OFFSET


def test_arrays_of_jax_are_read_only_though_they_do_not_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(Array=Exporting))
    with pytest.raises(UsageError, match="read-only"):
        gpu_array(Exporting(2, 0, array=np.ones(2)), driver_with(exported), in_place=True)


def test_what_cannot_be_shared_is_refused_with_its_owners_words():
    error = BufferError("Can't export tensors that require gradient, use tensor.detach()")
    with pytest.raises(UsageError, match=r"Exporting on a GPU cannot be shared with cupy: .* use tensor.detach\(\)"):
        gpu_array(Exporting(2, 0, error=error), driver_with(exported))


def test_bfloat16_without_its_numpy_type_is_refused_with_the_extra():
    def refuse(shown):
        raise NotImplementedError("CuPy does not support bfloat16. Please install ml_dtypes to use bfloat16.")

    with pytest.raises(UsageError, match=r"pip install 'distrun\[bfloat16\]'"):
        gpu_array(Exporting(2, 0), driver_with(refuse))


def test_an_array_of_another_gpu_is_refused_with_both_numbers():
    with pytest.raises(UsageError, match=r"Exporting is on GPU 3, but this rank's GPU is 0: make it there"):
        gpu_array(Exporting(2, 3), driver_with(exported))
