"""The GPU monitor: no GPU is touched before it is needed, and what cannot be completed is ended once."""

import pytest

from distrun.errors import CollectiveError, UsageError
from distrun.runtime.gpu.config import GpuConfig
from distrun.runtime.gpu.monitor import GpuMonitor


class FakeGpu:
    def __init__(self, trouble=None):
        self.is_busy = True
        self.trouble = trouble
        self.calls = []
        self.driver = self

    def relax_capture(self):
        self.calls.append("relax_capture")

    def check(self, now):
        self.calls.append("check")
        if self.trouble:
            raise CollectiveError(self.trouble)

    def abort(self, reason):
        self.calls.append(f"abort: {reason}")

    def close(self):
        self.calls.append("close")


@pytest.fixture
def monitor_of(monkeypatch):
    def make(gpu, fallen=lambda: None):
        made = GpuMonitor(GpuConfig(0, "host"), None, fallen)
        monkeypatch.setattr(made, "_make", lambda config: gpu)
        return made

    return make


def test_a_rank_on_the_cpu_is_told_why_its_tensor_cannot_travel():
    with pytest.raises(UsageError, match=r"bound to the CPU, because no GPU was visible .* `distrun doctor`"):
        GpuMonitor(None, None).gpu()


def test_nothing_is_made_before_it_is_needed(monitor_of):
    gpu = FakeGpu()
    monitor = monitor_of(gpu)
    assert (monitor.is_busy, monitor.check()) == (False, None)
    monitor.abort("x")
    monitor.close()
    assert gpu.calls == []
    assert monitor.gpu() is gpu


def test_looking_disturbs_no_capture_of_a_graph_and_takes_no_time_from_the_engine(monitor_of):
    gpu = FakeGpu()
    monitor = monitor_of(gpu)
    monitor.gpu()
    assert monitor.check() is monitor.check() is None
    assert gpu.calls == ["relax_capture", "check"]  # the second is left out, so soon after the first
    monitor._next_check = 0.0
    assert monitor.check() is None
    assert gpu.calls == ["relax_capture", "check", "check"]


def test_an_asynchronous_error_ends_everything_once(monitor_of):
    gpu = FakeGpu("NCCL on rank 1: remote error")
    monitor = monitor_of(gpu)
    monitor.gpu()
    assert [monitor.check() for _ in range(3)] == ["NCCL on rank 1: remote error"] * 3
    monitor.abort("another")
    assert gpu.calls == ["relax_capture", "check", "abort: NCCL on rank 1: remote error"]


def test_a_rank_that_is_gone_ends_everything_without_asking_the_device(monitor_of):
    gpu = FakeGpu()
    monitor = monitor_of(gpu, lambda: "rank 1 (process 7) was killed by SIGKILL")
    monitor.gpu()
    assert monitor.check() == "rank 1 (process 7) was killed by SIGKILL"
    assert gpu.calls == ["relax_capture", "abort: rank 1 (process 7) was killed by SIGKILL"]
    assert monitor.trouble == "rank 1 (process 7) was killed by SIGKILL"
