"""The simulated GPU behind the `cupy` beside this package; its interface for tests."""

from __future__ import annotations

from simulator import libcuda
from simulator.capture import GLOBAL, RELAXED, THREAD_LOCAL, Graph, begin_capture, end_capture
from simulator.errors import CUDARuntimeError, Violation
from simulator.machine import break_device, forget, touched
from simulator.recorder import Call, log, violations

__all__ = [
    "GLOBAL",
    "RELAXED",
    "THREAD_LOCAL",
    "CUDARuntimeError",
    "Call",
    "Graph",
    "Violation",
    "begin_capture",
    "break_device",
    "end_capture",
    "forget",
    "libcuda",
    "log",
    "touched",
    "violations",
]
