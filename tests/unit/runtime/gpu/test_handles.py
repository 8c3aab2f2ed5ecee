"""Handles of operations on GPU buffers: what they keep alive, and which streams they take."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from distrun.errors import UsageError
from distrun.runtime.gpu.arrays import CupyArena, GpuArray, gpu_array
from distrun.runtime.gpu.buffers import Borrowed
from distrun.runtime.gpu.driver import Driver
from distrun.runtime.gpu.handles import DeviceHandle
from distrun.runtime.gpu.in_flight import InFlightOperation
from distrun.runtime.operations.request import CUDA, Request

REQUEST = Request("allreduce", "a", "float32", ((4,),), device=CUDA)


@pytest.fixture
def driver(simulated):
    return Driver(0)


def submitted(driver, inputs=()):
    """Return a handle as it is when the operation has been queued."""
    gpu = SimpleNamespace(driver=driver, is_elastic=False, record_inputs=driver.record)
    gpu.join = lambda stream, submitted_on, finished: driver.wait(stream, finished)
    handle = DeviceHandle(SimpleNamespace(gpu=lambda: gpu), REQUEST, inputs, arena=CupyArena(driver))
    handle.kept_alive = [buffer.owner for buffer in inputs if isinstance(buffer.owner, Borrowed)]
    handle.done, handle.finished = True, driver.record(0)
    handle.operation = InFlightOperation(
        lambda: "allreduce 'a'", [handle.ready], handle.finished, [handle], handle.kept_alive
    )
    return handle


def test_the_stream_that_waits_may_use_the_memory_again_and_another_may_not(driver):
    handle = submitted(driver)
    with driver.cupy.cuda.Stream(non_blocking=True):
        handle.wait()
    assert handle.operation.handles == [handle]
    handle.wait()
    assert handle.operation.handles == []


def test_memory_of_another_library_is_kept_until_the_device_is_done_with_it(driver):
    array = driver.cupy.asarray(np.zeros(4, np.float32))
    own, _ = gpu_array(array, driver).flat()
    foreign, _ = GpuArray(object(), array).flat()
    assert (own.owner is array, foreign.owner == Borrowed(array)) == (True, True)
    handle = submitted(driver, [own, foreign])
    handle.wait()
    assert handle.operation.kept_alive == [foreign.owner]


def test_a_stream_lives_as_long_as_what_started_from_it(driver):
    stream = driver.cupy.cuda.Stream(non_blocking=True)
    with stream:
        handle = submitted(driver)
    known = weakref.ref(stream)
    del stream
    driver.cupy.cuda.get_current_stream()
    gc.collect()
    assert known() is not None
    handle.operation = None
    del handle
    gc.collect()
    assert known() is None


def test_the_default_stream_of_a_thread_is_refused(driver, monkeypatch):
    monkeypatch.setattr(driver.cupy.cuda, "get_current_stream", lambda index: SimpleNamespace(ptr=2))
    with pytest.raises(UsageError, match="unset CUPY_CUDA_PER_THREAD_DEFAULT_STREAM, or make a stream current"):
        CupyArena(driver).current_stream()


def test_an_old_cupy_is_refused(driver, monkeypatch):
    monkeypatch.delattr(driver.cupy.cuda.Stream, "from_external")
    monkeypatch.setattr(driver.cupy, "__version__", "13.6.0", raising=False)
    with pytest.raises(UsageError, match=r"need cupy 14 or newer, and this is 13.6.0: pip install 'distrun\[cuda12\]'"):
        Driver(0)
