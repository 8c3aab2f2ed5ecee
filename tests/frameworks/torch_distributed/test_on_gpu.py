"""The backend's way of tensors on GPUs: on simulated ones, and with streams that only note what is asked of them."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from session.tiers import one_in_gate

torch = pytest.importorskip("torch")

from distrun.runtime.gpu.buffers import DeviceBuffer  # noqa: E402
from distrun.runtime.gpu.handles import DeviceHandle  # noqa: E402
from distrun.torch import cuda  # noqa: E402
from distrun.torch_distributed.work import DistrunWork  # noqa: E402

ON_GPUS = Path(__file__).parent / "programs" / "on_simulated_gpus.py"
pytestmark = pytest.mark.gate
OWN, OTHER = 7, 9


@pytest.mark.parametrize(
    ("program", "arguments"), one_in_gate(pytest.param("collectives", ["compact"]), pytest.param("point_to_point", []))
)
def test_programs_with_tensors_on_simulated_gpus(gpu_job, program, arguments):
    said = gpu_job(ON_GPUS, 2, program, *arguments, PYTHONWARNINGS="ignore")
    executed = {name: int(times) for name, times in re.findall(r"(\w+)=(\d+)", said)}
    assert executed["moments"] > 5
    assert (executed["NCCL"] > 100) is (program == "collectives")


class Arena(cuda.TorchArena):
    """A GPU's memory and streams, of which one is current and nothing is done."""

    def __init__(self):
        super().__init__(3)
        self.current = OWN
        self.kept = []
        self.waits = []
        self.bound = []

    device = torch.device("cpu")

    def current_stream(self):
        return self.current

    def keep(self, tensor):
        self.kept.append((self.current, tensor))

    def moment(self):
        return cuda.StreamPoint(self, f"fetched on {self.current}")

    def wait_for(self, event):
        self.waits.append((self.current, event))

    def bind(self):
        self.bound.append(threading.current_thread().name)


class Operation(DeviceHandle):
    """An operation that was submitted from the stream OWN, and has a result."""

    def __init__(self, arena, result, done=True):
        self.arena, self.stream, self.done = arena, OWN, done
        self.request = SimpleNamespace(device="cuda")
        self.engine = SimpleNamespace(ensure_progress=lambda: None, is_served_at_once=True)
        self.outputs = [DeviceBuffer(result.data_ptr(), result.numel(), np.dtype(np.float32), result)]
        self.fetched_on = []

    def wait(self):
        self.fetched_on.append(self.arena.current)


@pytest.fixture
def arena(monkeypatch):
    monkeypatch.setattr(cuda, "kind", lambda tensor: "cuda")
    monkeypatch.setattr(DistrunWork, "_devices", lambda work: [])
    return Arena()


def test_who_waits_after_a_callback_waits_for_what_the_callback_has_queued(arena):
    result, target = torch.zeros(2), torch.zeros(2)
    operation = Operation(arena, result)
    work = DistrunWork([operation], [[target]], 60.0, "group")
    arena.current = OTHER  # torch runs callbacks of futures on streams of its own
    work.get_future().wait()
    assert operation.fetched_on == [OTHER]
    assert [(stream, id(tensor)) for stream, tensor in arena.kept] == [(OTHER, id(result)), (OTHER, id(target))]
    assert arena.waits == []
    arena.current = OWN
    assert work.wait()
    assert operation.fetched_on == [OTHER]
    assert arena.waits == [(OWN, "fetched on 9")]


def test_a_result_is_fetched_on_the_stream_of_who_waits_and_others_wait_for_that(arena):
    operation = Operation(arena, torch.zeros(2))
    work = DistrunWork([operation], [torch.zeros(2)], 60.0, "group")
    assert work.wait()
    assert work.wait()
    assert (operation.fetched_on, arena.kept, arena.waits) == ([OWN], [], [])
    arena.current = OTHER
    assert work.wait()
    assert arena.waits == [(OTHER, "fetched on 7")]


def test_callbacks_run_with_the_gpu_of_the_rank_as_the_current_one(arena):
    operation = Operation(arena, torch.zeros(2), done=False)
    future = DistrunWork([operation], [torch.zeros(2)], 60.0, "group").get_future()
    assert arena.bound == []
    operation.done = True
    operation.when_done(operation)
    future.wait()
    assert arena.bound == ["distrun futures"]
