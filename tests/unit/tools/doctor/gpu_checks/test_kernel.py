"""The facts from the kernel about GPUs, on a machine made of a few files."""

import os

import pytest
from machines.gpu_machine import write

from distrun.tools.doctor.gpu_checks import kernel

PLACES = ["0000:17:00.0", "0000:ca:00.0"]
CMDLINE = "BOOT_IMAGE=/boot/vmlinuz-6.8.0 root=UUID=1 ro quiet intel_iommu=on iommu.strict=1\n"


def config(control=None):
    """The configuration space of a bridge, as `lspci -xxxx` prints it: advanced errors, then perhaps ACS."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 2 << 16 | 0x148 << 20).to_bytes(4, "little")
    space[0x148:0x14C] = ((0x000D if control is not None else 0x0019) | 1 << 16).to_bytes(4, "little")
    space[0x14E:0x150] = (control or 0).to_bytes(2, "little")
    return bytes(space)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Two GPUs below a bridge each, on a NUMA node each, and an IOMMU."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    write(tmp_path, "proc/cpuinfo", "flags\t\t: fpu vme\n")
    write(tmp_path, "proc/cmdline", CMDLINE)
    write(tmp_path, "proc/1/comm", "systemd\n")
    write(tmp_path, "sys/class/iommu/dmar0/uevent", "")
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    for node, (place, bridge) in enumerate(zip(PLACES, ("0000:16:02.0", "0000:c9:02.0"), strict=True)):
        device = f"sys/devices/pci0000:{bridge[5:7]}/{bridge}/{place}"
        write(tmp_path, f"{device}/numa_node", f"{node}\n")
        write(tmp_path, f"{device}/iommu_group/type", "DMA-FQ\n")
        for entry, target in ((place, device), (bridge, os.path.dirname(device))):
            (tmp_path / "sys/bus/pci/devices" / entry).symlink_to(tmp_path / target)
        (tmp_path / os.path.dirname(device) / "config").write_bytes(config(0x1D if node else None))
        write(tmp_path, f"sys/devices/system/node/node{node}/cpulist", f"{2 * node}-{2 * node + 1}\n")
    return tmp_path


def test_the_facts_come_from_files_of_the_kernel(root):
    assert kernel.gather(PLACES, root, {}) == kernel.KernelFacts(
        iommus=["dmar0"],
        groups=["DMA-FQ", "DMA-FQ"],
        options=["intel_iommu=on", "iommu.strict=1"],
        bridges=2,
        redirecting=["0000:c9:02.0"],
        nodes=[0, 1],
        allowed=[0],
        bound={"numa": [[0], [0]], "socket": [[0], [0]], "core": [[0], [0]]},
    )


def test_ranks_may_use_and_are_bound_to_the_nodes_of_all_their_processors(root, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    found = kernel.gather(PLACES, root, {})
    assert found.allowed == [0, 1]
    assert found.bound["numa"] == [[0], [1]]
    assert found.bound["core"] == [[0], [1]]


def test_acs_is_found_among_the_capabilities_and_hidden_from_other_users_than_root(root):
    assert kernel.acs_control(config(0x1D)) == 0x1D
    assert kernel.acs_control(config()) == 0
    assert kernel.acs_control(config(0x1D)[:64]) is None
    (root / "sys/bus/pci/devices/0000:16:02.0/config").write_bytes(config()[:64])
    assert kernel.gather(PLACES, root, {}).redirecting is None


def test_mps_is_found_by_its_process_or_its_pipe(root):
    assert not kernel.gather([], root, {}).mps
    (root / "pipes").mkdir()
    os.mkfifo(root / "pipes" / "control")
    assert kernel.gather([], root, {"CUDA_MPS_PIPE_DIRECTORY": "/pipes"}).mps
    write(root, "proc/77/comm", "nvidia-cuda-mps\n")  # of nvidia-cuda-mps-control the kernel keeps 15 characters
    assert kernel.gather([], root, {}).mps


def test_a_machine_that_tells_nothing_is_no_error(tmp_path):
    found = kernel.gather(["0000:01:00.0"], tmp_path, {})
    assert (found.nodes, found.allowed, found.groups, found.iommus) == ([-1], [], [""], [])
