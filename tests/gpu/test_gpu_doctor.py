"""`distrun doctor --gpu`: the programs that measure, on simulated GPUs, and all steps of a host with them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from distrun.runner.hosts.program import LocalProgram, Program
from distrun.tools.doctor.connect import Access
from distrun.tools.doctor.gpu_checks import measure
from distrun.tools.doctor.host_checks import CheckOptions, HostChecks
from distrun.tools.doctor.report import HostReport, Report
from distrun.tools.doctor.shell_commands import ShellCommands

BYTES = str(1 << 16)
# The probe of a host with two GPUs, whose links and state are recorded.
PROBE = """
from dataclasses import replace
from functools import partial
from machines.nvml import DGX, library
from distrun.tools.doctor import gpus, probe
from distrun.tools.doctor.gpu_checks import kernel, measure, nvml, steps, xids

places = ["0000:3b:00.0", "0000:3c:00.0"]  # the simulator's
two = [replace(gpu, place=place) for gpu, place in zip(DGX.gpus, places)]
states = nvml.GpuStates(two, [[None, 40], [40, None]])
found = gpus.Gpus(["NVIDIA H100 80GB HBM3"] * 2, [81559 << 20] * 2, "580.65", "2.28.9", None, places, "", 13000, "cupy")
gpus.gather = lambda: found
nvml.read = partial(nvml.read, lambda: library(states))
facts = kernel.KernelFacts(groups=["DMA-FQ"] * 2, bridges=2, redirecting=[], nodes=[0, 0], allowed=[0])
kernel.gather = lambda places: facts
xids.read = lambda: ([], "/dev/kmsg: Operation not permitted")
measure.copies = partial(measure.copies, BYTES)
measure.allreduce = lambda count, allreduce=measure.allreduce: allreduce(count, BYTES)
probe.main()
""".replace("BYTES", repr(BYTES))
SUPPORT = str(Path(__file__).parents[1] / "support")


class HostWithGpus(Access):
    """Access to the probe above."""

    def start(self, python: str) -> Program:
        return LocalProgram("probe_with_gpus")


@pytest.fixture
def simulate(gpu_environ: Callable[[int], dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that lets this process's children have simulated GPUs."""

    def set_up(gpus: int, **environ: str) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in {**gpu_environ(gpus), **environ}.items():
            monkeypatch.setenv(name, value)

    return set_up


def examined() -> HostReport:
    options = CheckOptions(sys.executable, "/", "", 60.0, gpu=True)
    checks = HostChecks("here", HostWithGpus(), ShellCommands(None, sys.executable, "/"), options)
    try:
        return checks.run()
    finally:
        checks.close()


@pytest.mark.gate
def test_all_steps_of_a_host_with_two_gpus(simulate, tmp_path, monkeypatch):
    simulate(2)
    (tmp_path / "probe_with_gpus.py").write_text(PROBE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path), SUPPORT]))
    report = examined()
    steps = {step.name: step for step in report.steps[-9:]}
    assert list(steps) == ["topology", "iommu", "numa", "ecc", "clocks", "mps", "xid", "p2p", "nccl"]
    assert steps["topology"].text.startswith("the pair over NVLink x 18 (478 GB/s each way)")
    assert steps["iommu"].status.value == "warning"
    assert steps["iommu"].command == "cat /proc/cmdline; sudo lspci -vvv | grep ACSCtl"
    assert "not checked: the kernel's log" in steps["xid"].text
    assert steps["xid"].command == ""
    # The simulated links carry some MB/s.
    assert steps["p2p"].text.startswith("copies arrive intact, with P2P, at 0.0")
    assert "2 of 2 copies are slow" in steps["p2p"].text
    assert steps["nccl"].text.startswith("an allreduce of 0 MiB by 2 ranks has a bus bandwidth of 0.0")
    (gpus,) = [step for step in report.steps if step.name == "gpus"]
    assert gpus.text == "2 x NVIDIA H100 80GB HBM3 (80 GiB each), driver 580.65 for CUDA 13.0, NCCL 2.28.9"
    found = Report((report,)).to_json()["hosts"][0]["gpu_checks"]
    assert list(found) == ["nvml", "kernel", "xids", "xids_unread", "copies", "allreduce"]
    assert found["nvml"]["gpus"][1]["place"] == found["copies"]["places"][1] == "0000:3c:00.0"
    assert found["allreduce"]["ranks"] == 2


def test_copies_are_between_all_pairs_and_compared(simulate):
    simulate(3, SIMULATED_GPU_PEERS="0-1,1-0", SIMULATED_GPU_PEERS_BROKEN="2-1", SIMULATED_GPU_STRICT="1")
    found = measure.copies(BYTES)
    assert found["places"] == [f"0000:{bus}:00.0" for bus in ("3b", "3c", "3d")]
    assert found["access"] == [[True, True, False], [True, True, False], [False, False, True]]
    assert [[rate is None for rate in row] for row in found["rates"]] == [[i == j for j in range(3)] for i in range(3)]
    assert found["wrong"] == [[2, 1]]


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SIMULATED_NCCL_FAIL": "allReduce:3"}, "allreduce failed in NCCL on rank"),
        ({"DISTRUN_SHARE_GPUS": "0", "SIMULATED_GPUS": "1"}, "2 ranks on localhost but only 1 visible GPU"),
    ],
)
def test_an_allreduce_that_fails_ends_with_the_words_of_a_rank(simulate, environ, words):
    simulate(2, **environ)
    problem = measure.allreduce(2, BYTES)["problem"]
    assert words in problem
    assert not problem.startswith(("distrun", "Traceback"))


def test_programs_that_hang_or_find_no_cupy_are_a_sentence(simulate, tmp_path, monkeypatch):
    simulate(2)
    monkeypatch.setattr(measure, "_ALLREDUCE", 0.01)
    assert measure.allreduce(2, BYTES) == {"problem": "it did not end within 0.01 s"}
    (tmp_path / "cupy.py").write_text("raise ImportError('libcudart.so.13: no such file')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "GPU tensors need cupy, which cannot be imported (libcudart" in measure.copies()["skipped"]
