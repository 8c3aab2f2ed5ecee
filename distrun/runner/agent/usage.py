"""The usage of the host's CPUs, memory, network and GPUs: by its ranks, and by all processes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psutil

from distrun.runner.system.gpu_usage import new_gpu_usage


class Usage:
    """Measures the usage since the previous call. A rank's CPU usage is in percent of one core."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        self._gpus = new_gpu_usage()
        psutil.cpu_percent(None)

    def sample(self, pids: Mapping[int, int]) -> dict[str, Any]:
        """Return the usage of the machine and of the processes `pids`.

        Args:
            pids: the process id of each process, by its number.

        Returns:
            `cpu` (percent of all cores), `memory` (percent), `network` (bytes received and sent by interface, since the
            machine started), `ranks` (by number: `cpu` in percent of one core, `memory` in bytes, and `gpu` if it
            computes on a GPU, see `GpuUsage.by_process`).
        """
        for number in self._processes.keys() - pids.keys():
            del self._processes[number]
        ranks: dict[str, dict[str, Any]] = {}
        for number, pid in pids.items():
            with suppress(psutil.Error):
                ranks[str(number)] = self._of(number, pid)
        for number, gpu in ({} if self._gpus is None else self._gpus.by_process(pids)).items():
            ranks.setdefault(str(number), {"cpu": 0.0, "memory": 0})["gpu"] = gpu
        counters = psutil.net_io_counters(pernic=True, nowrap=False)
        return {
            "cpu": psutil.cpu_percent(None),
            "memory": psutil.virtual_memory().percent,
            "network": {name: [one.bytes_recv, one.bytes_sent] for name, one in counters.items()},
            "ranks": ranks,
        }

    def _of(self, number: int, pid: int) -> dict[str, Any]:
        process = self._processes.get(number)
        if process is None:
            process = self._processes[number] = psutil.Process(pid)
            process.cpu_percent(None)
        with process.oneshot():
            return {"cpu": process.cpu_percent(None), "memory": process.memory_info().rss}
