"""A rank's GPU follows from files and variables alone, and too few GPUs are one clear sentence."""

from dataclasses import replace

import pytest

from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.host import gpus
from distrun.runtime.world import devices
from distrun.runtime.world.devices import Cpu, Cuda

LAST_OF_THREE = Topology(2, 3, 2, 3, 0, 1, "nodeA")


@pytest.fixture
def host_with(tmp_path, monkeypatch):
    """Make a host with this many GPUs, as the driver shows them."""

    def make(count):
        for index in range(count):
            (tmp_path / f"0000:{index:02x}:00.0").mkdir()
        monkeypatch.setattr(gpus, "_DRIVER", tmp_path)
        monkeypatch.setattr(gpus, "_NODES", tmp_path / "absent")

    return make


@pytest.mark.parametrize(
    ("gpus", "environ", "expected", "name"),
    [
        (4, {}, Cuda(2), "cuda:2"),
        (0, {}, Cpu(0), "cpu:0"),
        (1, {"CUDA_VISIBLE_DEVICES": ""}, Cpu(0), "cpu:0"),
        (1, {"SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "0"}, Cuda(0), "cuda:0"),  # for the task alone
    ],
)
def test_a_rank_has_the_gpu_of_its_local_rank_or_the_cpu(host_with, gpus, environ, expected, name):
    host_with(gpus)
    device = devices.bind(LAST_OF_THREE, environ)
    assert (device, str(device)) == (expected, name)


def test_too_few_gpus_are_refused_with_both_numbers_and_the_remedies(host_with):
    host_with(2)
    with pytest.raises(
        UsageError, match=r"^3 ranks on nodeA but only 2 visible GPUs: .*--share-gpus .*=1\) .*CUDA_VISIBLE_DEVICES=''"
    ):
        devices.bind(LAST_OF_THREE, {})


def test_ranks_share_gpus_in_turn_when_allowed(host_with):
    host_with(2)
    assert devices.bind(LAST_OF_THREE, {}, share_gpus=True) == Cuda(0, sharers=2)
    assert devices.bind(replace(LAST_OF_THREE, local_rank=1), {}, share_gpus=True) == Cuda(1, sharers=1)
