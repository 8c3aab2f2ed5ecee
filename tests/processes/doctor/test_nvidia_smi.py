"""An `nvidia-smi` that the doctor asks, played by a script, on machines made of a few files."""

from __future__ import annotations

import os

import pytest
from machines.gpu_machine import PLACES, Driver, missing, two_gpus, write

from distrun.host.gpus import visible_gpus
from distrun.tools.doctor import gpus

pytestmark = pytest.mark.gate


@pytest.fixture
def root(tmp_path):
    """A machine with two GPUs."""
    return two_gpus(tmp_path)


def smi(root, script):
    path = root / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_names_and_memory_come_from_nvidia_smi_and_the_rest_from_the_kernel(root):
    tool = smi(root, "printf 'NVIDIA H100 80GB HBM3, 81559\\nNVIDIA H100 80GB HBM3, 81559\\n'")
    found = gpus.gather(root, lambda: Driver(2, [(0, 1)]), tool)
    assert found.names == ["NVIDIA H100 80GB HBM3"] * 2
    assert found.memory == [81559 << 20] * 2
    assert found.driver == "550.54.15"
    assert found.peers == [[True, True], [False, True]]
    assert found.iommu == []
    assert found.problem == ""
    assert found.cuda == 12040


def test_an_nvidia_smi_that_fails_is_a_problem_with_its_own_words(root):
    tool = smi(root, "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    assert gpus.gather(root, missing, tool).problem == (
        "nvidia-smi failed: Failed to initialize NVML: Driver/library version mismatch"
    )


def test_an_nvidia_smi_that_hangs_is_given_up(root, monkeypatch):
    monkeypatch.setattr(gpus, "_SMI_TIMEOUT", 0.2)
    assert "did not answer" in gpus.gather(root, missing, smi(root, "exec sleep 60")).problem


def test_an_iommu_that_translates_is_found_unless_the_machine_is_virtual(root):
    write(root, f"sys/bus/pci/devices/{PLACES[1]}/iommu_group/type", "DMA-FQ\n")
    assert gpus.gather(root, missing, smi(root, "")).iommu == [PLACES[1]]
    write(root, "proc/cpuinfo", "flags\t\t: fpu hypervisor vme\n")
    assert gpus.gather(root, missing, smi(root, "")).iommu == []


def test_cupy_is_found_by_its_packages(root, monkeypatch):
    monkeypatch.setattr(gpus, "installed_version", lambda package: "1" * (package == "cupy-cuda12x"))
    assert gpus.gather(root, missing, smi(root, "")).cupy == "cupy-cuda12x"


@pytest.mark.gpu
@pytest.mark.skipif(not visible_gpus(os.environ), reason="there is no NVIDIA GPU here")
def test_the_gpus_of_this_machine():
    found = gpus.gather()
    assert found.names
    assert found.driver
    assert found.problem == ""
    assert found.peers is not None
    assert len(found.peers) == len(found.names)
