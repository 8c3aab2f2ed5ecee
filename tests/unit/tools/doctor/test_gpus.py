"""GPUs as the doctor sees them, on machines made of a few files and a driver of a few lines."""

import pytest
from machines.gpu_machine import Driver, missing, two_gpus, write

from distrun.tools.doctor import gpus

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs@U22)\n"


@pytest.fixture
def root(tmp_path):
    """A machine with two GPUs."""
    return two_gpus(tmp_path)


def test_a_machine_without_gpus_has_none_and_no_problem(tmp_path):
    assert gpus.gather(tmp_path, missing, "/no/such/nvidia-smi") == gpus.Gpus()


def test_without_nvidia_smi_names_come_from_the_kernel(root, monkeypatch):
    monkeypatch.setenv("PATH", str(root))
    write(root, "proc/driver/nvidia/version", OPEN)
    found = gpus.gather(root, missing)
    assert (found.names, found.memory, found.driver) == (["NVIDIA H100 80GB HBM3"] * 2, [], "570.86.15")
    assert found.peers is None


def test_gpus_without_a_driver_are_a_problem(root):
    (root / "proc/driver/nvidia/version").unlink()
    write(root, "sys/bus/pci/devices/0000:00:01.0/vendor", "0x1002\n")
    assert gpus.gather(root, missing, None).problem == "2 NVIDIA device(s), and no driver is loaded"


def test_a_broken_driver_tells_nothing_about_peers_and_cuda():
    for load in (lambda: Driver(2, broken=True), missing):
        assert gpus.peers(load) is None
        assert gpus.cuda_version(load) == 0
    assert gpus.peers(lambda: Driver(0)) == []


def test_what_nvidia_smi_prints_is_understood():
    assert gpus.parse_smi("NVIDIA GB10, [N/A]\n") == (["NVIDIA GB10"], [])
    assert gpus.parse_smi("A, B, 16\n\n") == (["A, B"], [16 << 20])
    assert gpus.parse_smi("") == ([], [])


def test_versions_of_nccl():
    assert gpus.nccl_version(22105) == "2.21.5"
    assert gpus.nccl_version(2803) == "2.8.3"
