"""NVML, read through ctypes from a library that answers as three machines do."""

from dataclasses import asdict, replace

import pytest
from machines.nvml import DGX, PCIE, WORKSTATION, library

from distrun.tools.doctor.gpu_checks import nvml


@pytest.mark.parametrize("machine", [DGX, PCIE, WORKSTATION])
def test_what_the_library_tells_is_read_and_survives_the_way_from_the_probe(machine):
    found = nvml.read(lambda: library(machine))
    assert found == machine
    assert nvml.GpuStates.from_json(asdict(found)) == machine


def test_bridges_between_gpus_are_told_from_switches():
    ends = [replace(PCIE.gpus[i], links=[PCIE.gpus[1 - i].place] * 4, links_down=0, link_speed=14062) for i in (0, 1)]
    bridged = replace(PCIE, gpus=[*ends, *PCIE.gpus[2:]])
    assert nvml.read(lambda: library(bridged)) == bridged


def test_functions_that_an_older_driver_lacks_are_done_without():
    older = library(DGX, nvmlDeviceGetCurrentClocksEventReasons=None, nvmlDeviceGetFieldValues=None)
    assert nvml.read(lambda: older) == replace(DGX, gpus=[replace(gpu, link_speed=None) for gpu in DGX.gpus])


def test_a_library_that_is_missing_or_fails_is_a_problem():
    def missing():
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    assert nvml.read(missing).problem.startswith("NVIDIA's library libnvidia-ml.so.1 cannot be loaded (libnvidia-ml")
    failing = library(DGX, nvmlInit_v2=lambda: 18)
    assert nvml.read(lambda: failing).problem == "NVML does not start: Driver/library version mismatch"
