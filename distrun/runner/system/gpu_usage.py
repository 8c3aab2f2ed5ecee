"""The usage of NVIDIA GPUs by the ranks of this host, where there is a driver and the package nvidia-ml-py."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from distrun.host.gpus import VISIBLE, visible_gpus


class GpuUsage:
    """Asks NVML, which initialises no CUDA and disturbs nothing."""

    def __init__(self, library: Any) -> None:
        """Args: the module `pynvml`, initialised."""
        self._library = library
        self._gpus = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]

    def by_process(self, pids: Mapping[int, int]) -> dict[int, dict[str, float]]:
        """Return, by number of process, `use` in percent and `memory` in bytes of the GPU that it computes on.

        A GPU that several ranks share says for each of them how busy it is in all; the memory is their own.
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
    """Return what asks for the usage of GPUs; None: there are none, or nobody who could be asked."""
    if not visible_gpus({name: value for name, value in os.environ.items() if name != VISIBLE}):
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        return GpuUsage(pynvml)
    except Exception:  # whatever it is: the package is missing, or the driver is none that it can use
        return None
