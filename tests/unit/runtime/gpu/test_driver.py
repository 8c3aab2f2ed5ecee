"""`Driver.use`: the driver's GPU is the current one inside a block, and afterwards the one from before."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from distrun.runtime.gpu import driver as module
from distrun.runtime.gpu.driver import DeviceError, Driver

OWN, WITHOUT_CONTEXT = 2, 7
DEADLINE = 60.0  # seconds


class Runtime(threading.local):
    """CUDA's runtime: each thread has a current GPU."""

    CUDARuntimeError = KeyError
    current = 0

    def getDeviceCount(self) -> int:  # noqa: N802 - as cupy calls it
        return 8

    def getDevice(self) -> int:  # noqa: N802
        return self.current

    def setDevice(self, device: int) -> None:  # noqa: N802
        self.current = device


@pytest.fixture
def runtime():
    return Runtime()


@pytest.fixture
def driver(monkeypatch, runtime):
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(module, "_import_cupy", lambda: cupy)
    monkeypatch.setattr(module, "_has_context", lambda device: device != WITHOUT_CONTEXT)
    return Driver(OWN)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (OWN, OWN), (WITHOUT_CONTEXT, OWN)])
def test_the_gpu_from_before_is_restored_unless_it_has_no_context(runtime, driver, before, after):
    runtime.setDevice(before)
    with driver.use:
        for _ in range(2):
            with driver.use:
                assert runtime.current == OWN
            assert runtime.current == OWN
    assert runtime.current == after


@pytest.mark.parametrize("before", [0, OWN])
def test_so_it_is_inside_a_block_that_has_made_another_one_current(runtime, driver, before):
    runtime.setDevice(before)
    with driver.use:
        runtime.setDevice(5)
        with driver.use:
            assert runtime.current == OWN
        assert runtime.current == 5
        runtime.setDevice(OWN)
    assert runtime.current == before


def test_an_error_of_cuda_becomes_ours_and_others_stay(runtime, driver):
    with pytest.raises(DeviceError, match="GPU 2 has failed: 'an illegal memory access'"), driver.use:
        raise KeyError("an illegal memory access")
    with pytest.raises(ZeroDivisionError), driver.use:
        raise ZeroDivisionError
    assert runtime.current == 0


@pytest.mark.parametrize(("ours", "theirs"), [(0, 1), (0, OWN), (OWN, 1), (OWN, OWN)])
@pytest.mark.parametrize("ends_first", [True, False])
def test_each_thread_gets_its_own_gpu_back(runtime, driver, ours, theirs, ends_first):
    begun, may_end, found = threading.Event(), threading.Event(), []

    def work() -> None:
        runtime.setDevice(theirs)
        with driver.use:
            begun.set()
            may_end.wait(DEADLINE)
            with driver.use:
                found.append(runtime.current)
        found.append(runtime.current)

    thread = threading.Thread(target=work)
    runtime.setDevice(ours)
    with driver.use:
        thread.start()
        assert begun.wait(DEADLINE)
        if ends_first:
            may_end.set()
            thread.join()
        with driver.use:
            assert runtime.current == OWN
    assert runtime.current == ours
    may_end.set()
    thread.join()
    assert found == [OWN, theirs]
