"""A rank's GPU follows from files and variables alone, and too few GPUs are one clear sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distrun.errors import UsageError
from distrun.runtime import devices
from distrun.runtime.devices import cuda
from distrun.runtime.devices.cpu import Cpu
from distrun.runtime.devices.cuda import Cuda, visible_gpus
from distrun.runtime.topology import Topology

LAST_OF_THREE = Topology(2, 3, 2, 3, 0, 1, "nodeA")


@pytest.fixture
def host_with(tmp_path, monkeypatch):
    """Make a host with this many GPUs, as the driver shows them."""

    def make(count):
        for index in range(count):
            (tmp_path / f"0000:{index:02x}:00.0").mkdir()
        monkeypatch.setattr(cuda, "_GPUS", tmp_path)
        monkeypatch.setattr(cuda, "_NODES", tmp_path / "absent")

    return make


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 4),
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("2", 1),
        ("0,1,3", 3),
        ("0, 1", 2),
        ("0,-1,1", 1),
        ("0,9,1", 1),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,GPU-5b1c", 2),
        ("MIG-2f0e,MIG-77aa", 1),
    ],
)
def test_gpus_are_counted_as_cuda_would_show_them(host_with, visible, count):
    host_with(4)
    assert visible_gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == count


def test_without_the_driver_no_variable_makes_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda, "_GPUS", tmp_path / "absent")
    monkeypatch.setattr(cuda, "_NODES", tmp_path / "absent")
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}) == 0


@pytest.mark.parametrize(("listed", "nodes", "count"), [(4, 2, 2), (0, 2, 2), (4, 0, 4), (0, 0, 0)])
def test_containers_show_their_gpus_here_or_there(host_with, tmp_path_factory, monkeypatch, listed, nodes, count):
    host_with(listed)
    dev = tmp_path_factory.mktemp("dev")
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(nodes))):
        (dev / name).touch()
    monkeypatch.setattr(cuda, "_NODES", dev)
    assert visible_gpus({}) == count


def test_a_rank_has_the_gpu_of_its_local_rank(host_with):
    host_with(4)
    device = devices.bind(LAST_OF_THREE, {})
    assert (device, str(device)) == (Cuda(2), "cuda:2")


def test_a_host_without_gpus_computes_on_the_cpu(host_with):
    host_with(0)
    device = devices.bind(LAST_OF_THREE, {})
    assert (device, str(device)) == (Cpu(0), "cpu:0")


def test_hidden_gpus_are_not_used(host_with):
    host_with(1)
    assert devices.bind(LAST_OF_THREE, {"CUDA_VISIBLE_DEVICES": ""}) == Cpu(0)


def test_too_few_gpus_are_refused_with_both_numbers_and_the_remedies(host_with):
    host_with(2)
    with pytest.raises(
        UsageError, match=r"^3 ranks on nodeA but only 2 visible GPUs: .*--share-gpus .*=1\) .*CUDA_VISIBLE_DEVICES=''"
    ):
        devices.bind(LAST_OF_THREE, {})


def test_ranks_share_gpus_in_turn_when_allowed(host_with):
    host_with(2)
    assert devices.bind(LAST_OF_THREE, {"DISTRUN_SHARE_GPUS": "1"}) == Cuda(0, sharers=2)
    assert devices.bind(replace(LAST_OF_THREE, local_rank=1), {"DISTRUN_SHARE_GPUS": "1"}) == Cuda(1, sharers=1)


def test_sharing_is_yes_or_no(host_with):
    host_with(2)
    with pytest.raises(UsageError, match=r"DISTRUN_SHARE_GPUS='yes' is neither 1 .* nor 0"):
        devices.bind(LAST_OF_THREE, {"DISTRUN_SHARE_GPUS": "yes"})


def test_a_gpu_that_slurm_gave_to_the_task_alone_is_its_first(host_with):
    host_with(1)
    assert devices.bind(LAST_OF_THREE, {"SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "0"}) == Cuda(0)


def test_cuda_is_never_bound_where_there_is_none(host_with):
    host_with(0)
    with pytest.raises(UsageError, match="only 0 visible GPUs"):
        Cuda.bind(LAST_OF_THREE, {})
