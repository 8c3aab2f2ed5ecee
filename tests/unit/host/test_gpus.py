"""The GPUs of a process follow from files and one variable, for the launcher and the ranks alike."""

import pytest

from distrun.contract.topology import Topology
from distrun.host import gpus
from distrun.host.gpus import visible_gpus
from distrun.runner.system import machine
from distrun.runtime.world import devices
from distrun.runtime.world.devices import Cuda

UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"


@pytest.fixture
def machine_with(tmp_path, monkeypatch):
    """Make a machine with `listed` GPUs in /proc and `nodes` in /dev."""

    def make(listed, nodes):
        driver, dev = tmp_path / "proc", tmp_path / "dev"
        for index in range(listed):
            (driver / f"0000:{index:02x}:00.0").mkdir(parents=True)
        dev.mkdir()
        for name in ("null", "nvidiactl", "nvidia-uvm", "nvidia-caps", *(f"nvidia{index}" for index in range(nodes))):
            (dev / name).touch()
        monkeypatch.setattr(gpus, "_DRIVER", driver)
        monkeypatch.setattr(gpus, "_NODES", dev)

    return make


CASES = [  # of CUDA_VISIBLE_DEVICES on a machine with two GPUs
    (None, 2),
    ("", 0),
    (" ", 0),
    ("-1", 0),
    ("NoDevFiles", 0),
    ("none", 0),
    ("void", 0),
    ("1", 1),
    ("0,1", 2),
    (" 1 , 0 ", 2),
    ("1,", 1),
    ("0,1,9", 2),
    ("9,0,1", 0),
    ("0,9,1", 1),
    ("-1,0", 0),
    ("0,-1,1", 1),
    ("0,,1", 1),
    ("+1,00", 2),
    ("1x,0", 2),
    ("0,0", 0),
    ("0,1,0", 0),
    (UUID, 1),
    (f"{UUID},GPU-5b1c", 2),
    (f"{UUID},{UUID}", 0),
    (f"{UUID},1", 1),
    (f"0,{UUID}", 1),
    ("MIG-a", 1),
    ("MIG-a,MIG-b", 1),
    ("MIG-GPU-8932f937/1/0", 1),
    ("GPU-8a1b,MIG-77", 1),
    ("GPU-1,GPU-2,GPU-3", 2),
]


@pytest.mark.parametrize(("visible", "count"), CASES)
def test_gpus_are_counted_as_cuda_would_enumerate_them_and_each_has_a_rank(machine_with, monkeypatch, visible, count):
    machine_with(2, 2)
    environ = {} if visible is None else {gpus.VISIBLE: visible}
    assert visible_gpus(environ) == count
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(machine, "count_cores", lambda: 3)
    ranks = machine.default_slots()
    assert ranks == (count or 3)
    bound = [devices.bind(Topology(rank, ranks, rank, ranks, 0, 1, "alpha"), environ) for rank in range(ranks)]
    if count:
        assert bound == [Cuda(rank) for rank in range(count)]
    else:
        assert {device.name for device in bound} == {"cpu"}


@pytest.mark.parametrize(
    ("listed", "nodes", "count"),
    [
        (8, 2, 2),  # a container that was given two of its host's GPUs
        (0, 2, 2),  # one without /proc/driver/nvidia
        (2, 0, 2),  # device nodes that nobody has used yet
        (2, 2, 2),
        (0, 0, 0),  # no GPU, or WSL2
    ],
)
def test_gpus_may_be_listed_in_proc_or_dev_or_both(machine_with, listed, nodes, count):
    machine_with(listed, nodes)
    assert visible_gpus({}) == count


@pytest.mark.parametrize("visible", ["0,1", UUID, "MIG-a"])
def test_where_no_gpu_is_listed_no_variable_makes_one(machine_with, visible):
    machine_with(0, 0)
    assert visible_gpus({gpus.VISIBLE: visible}) == 0


def test_folders_that_do_not_exist_list_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path / "absent")
    monkeypatch.setattr(gpus, "_NODES", tmp_path / "absent")
    assert visible_gpus({}) == 0
