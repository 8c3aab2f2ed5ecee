"""GPUs as the doctor sees them, on machines made of a few files and a driver of a few lines."""

from __future__ import annotations

import pytest

from distrun.runner.doctor import gpus

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs@U22)\n"
PLACES = ["0000:18:00.0", "0000:3b:00.0"]


class Driver:
    """libcuda with so many GPUs, and those pairs that can access each other."""

    def __init__(self, count, able=(), broken=False):
        self._count = count
        self._able = set(able)
        self._broken = broken

    def cuInit(self, flags):  # noqa: N802 # the library's name
        return 100 if self._broken else 0

    def cuDriverGetVersion(self, version):  # noqa: N802
        version._obj.value = 12040
        return 1 if self._broken else 0

    def cuDeviceGetCount(self, count):  # noqa: N802
        count._obj.value = self._count
        return 0

    def cuDeviceGet(self, device, ordinal):  # noqa: N802
        device._obj.value = ordinal
        return 0

    def cuDeviceCanAccessPeer(self, answer, one, other):  # noqa: N802
        answer._obj.value = (one, other) in self._able
        return 0


def missing():
    raise OSError("libcuda.so.1: cannot open shared object file")


@pytest.fixture
def root(tmp_path):
    """A machine with two GPUs."""
    write(tmp_path, "proc/driver/nvidia/version", DRIVER)
    write(tmp_path, "proc/cpuinfo", "flags\t\t: fpu vme\n")
    for place in PLACES:
        write(tmp_path, f"proc/driver/nvidia/gpus/{place}/information", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n")
        write(tmp_path, f"sys/bus/pci/devices/{place}/vendor", "0x10de\n")
        write(tmp_path, f"sys/bus/pci/devices/{place}/class", "0x030200\n")
        write(tmp_path, f"sys/bus/pci/devices/{place}/iommu_group/type", "identity\n")
    return tmp_path


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_a_machine_without_gpus_has_none_and_no_problem(tmp_path):
    assert gpus.gather(tmp_path, missing, "/no/such/nvidia-smi") == gpus.Gpus()


def test_without_nvidia_smi_names_come_from_the_kernel(root, monkeypatch):
    monkeypatch.setenv("PATH", str(root))
    write(root, "proc/driver/nvidia/version", OPEN)
    found = gpus.gather(root, missing)
    assert found.names == ["NVIDIA H100 80GB HBM3"] * 2
    assert found.memory == []
    assert found.driver == "570.86.15"
    assert found.peers is None


def test_gpus_without_a_driver_are_a_problem(root):
    (root / "proc/driver/nvidia/version").unlink()
    write(root, "sys/bus/pci/devices/0000:00:01.0/vendor", "0x1002\n")
    assert gpus.gather(root, missing, None).problem == "2 NVIDIA device(s), and no driver is loaded"


def test_a_broken_driver_tells_nothing_about_peers():
    assert gpus.peers(lambda: Driver(2, broken=True)) is None
    assert gpus.peers(missing) is None
    assert gpus.peers(lambda: Driver(0)) == []


def test_a_broken_driver_does_not_tell_its_cuda():
    assert gpus.cuda_version(lambda: Driver(2, broken=True)) == 0
    assert gpus.cuda_version(missing) == 0


def test_what_nvidia_smi_prints_is_understood():
    assert gpus.parse_smi("NVIDIA GB10, [N/A]\n") == (["NVIDIA GB10"], [])
    assert gpus.parse_smi("A, B, 16\n\n") == (["A, B"], [16 << 20])
    assert gpus.parse_smi("") == ([], [])


def test_versions_of_nccl():
    assert gpus.nccl_version(22105) == "2.21.5"
    assert gpus.nccl_version(2803) == "2.8.3"
