"""The usage of NVIDIA GPUs by the ranks of this host, if the driver and the package nvidia-ml-py are installed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from distrun.host.gpus import VISIBLE, visible_gpus


class GpuUsage:
    """Measures through NVML, which does not initialise CUDA."""

    def __init__(self, library: Any) -> None:
        """Args: `library` is the module `pynvml`, initialised."""
        self._library = library
        self._gpus = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]

    def by_process(self, pids: Mapping[int, int]) -> dict[int, dict[str, float]]:
        """Return for each process's number the `use` (percent) and `memory` (bytes) of the GPU that it computes on.

        For ranks that share a GPU, `use` is the total of the GPU, and `memory` is the rank's own.
        """
        numbers = {pid: number for number, pid in pids.items()}
        found: dict[int, dict[str, float]] = {}
        for gpu in self._gpus:
            with suppress(self._library.NVMLError):
                use = self._library.nvmlDeviceGetUtilizationRates(gpu).gpu
                for process in self._library.nvmlDeviceGetComputeRunningProcesses(gpu):
                    if process.pid in numbers:
                        found[numbers[process.pid]] = {"use": use, "memory": process.usedGpuMemory or 0}
        return found


def new_gpu_usage() -> GpuUsage | None:
    """Return a `GpuUsage`, or None without GPUs or without a usable NVML."""
    if not visible_gpus({name: value for name, value in os.environ.items() if name != VISIBLE}):
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        return GpuUsage(pynvml)
    except Exception:  # any error: the package is missing, or it cannot use the driver
        return None
