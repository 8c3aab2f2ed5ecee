"""Shared parts of tests that need a real GPU."""

from __future__ import annotations

import pytest

from distrun.runtime.gpu.driver import Driver


@pytest.fixture(scope="module")
def driver():
    """The driver of GPU 0, in use; without one the test is skipped."""
    cupy = pytest.importorskip("cupy", reason="needs cupy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"needs an NVIDIA GPU: {error}")
    made = Driver(0)
    with made.use:
        yield made
