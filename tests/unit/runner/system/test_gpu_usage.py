"""The usage of GPUs, with a driver that is only pretended: none is at hand."""

from types import SimpleNamespace

from distrun.runner.system.gpu_usage import GpuUsage

PROCESSES = ([(100, 5_000), (101, 6_000)], [(102, None)], None)


def running(gpu):
    if PROCESSES[gpu] is None:
        raise RuntimeError("not supported")
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in PROCESSES[gpu]]


# As much of pynvml as is used: two GPUs with three processes, and one that cannot be asked.
LIBRARY = SimpleNamespace(
    NVMLError=RuntimeError,
    nvmlDeviceGetCount=lambda: 3,
    nvmlDeviceGetHandleByIndex=lambda index: index,
    nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu=50 + gpu, memory=0),
    nvmlDeviceGetComputeRunningProcesses=running,
)


def test_each_rank_has_the_use_of_its_gpu_and_its_own_memory():
    assert GpuUsage(LIBRARY).by_process({0: 100, 1: 101, 2: 102, 3: 103}) == {
        0: {"use": 50, "memory": 5_000},
        1: {"use": 50, "memory": 6_000},
        2: {"use": 51, "memory": 0},
    }
