"""The doctor's judgement of what connects GPUs, on the machines of `machines.nvml`."""

import re
from dataclasses import replace

import pytest
from machines.nvml import DGX, PCIE, WORKSTATION, copied, h100

from distrun.tools.doctor.gpu_checks import link_verdicts as verdicts
from distrun.tools.doctor.gpu_checks.links import between, narrowest
from distrun.tools.doctor.gpu_checks.nvml import SWITCH, GpuStates
from distrun.tools.doctor.report import Status

SUM = {"ranks": 8, "bytes": 256 << 20, "rate": 362e9, "wrong": []}


def test_the_link_of_two_gpus_is_nvlinks_or_a_way_through_bridges():
    assert vars(between(DGX, 0, 7)) == {"kind": "NV", "nvlinks": 18, "rate": pytest.approx(478.1e9, rel=1e-3)}
    assert between(PCIE, 0, 1).kind == "PXB"
    assert (between(PCIE, 0, 3).kind, between(PCIE, 0, 3).rate) == ("SYS", pytest.approx(31.5e9, rel=1e-3))
    assert between(PCIE, 0, 1).least == 2 * between(PCIE, 0, 3).least  # processors on the way take more
    untold = replace(PCIE, ancestors=[[None] * 4] * 4, gpus=[replace(gpu, pcie_width=None) for gpu in PCIE.gpus])
    assert vars(between(untold, 0, 1)) == {"kind": "", "nvlinks": 0, "rate": None}
    # Bridged in pairs: direct NVLinks count, and those to a switch would not.
    ends = [h100("a", links=["b"] * 4), h100("b", links=["a"] * 4), h100("c", links=[SWITCH] * 4)]
    bridged = GpuStates(ends, [[None, 10, 50], [10, None, 50], [50, 50, None]])
    assert [between(bridged, *pair).nvlinks for pair in ((0, 1), (0, 2))] == [4, 0]


def test_the_narrowest_pair_is_the_one_that_no_ring_avoids():
    assert narrowest([[None, 9, 1], [9, None, 3], [1, 3, None]]) == (1, 2)
    assert narrowest([[None, None], [None, None]]) is narrowest([[None]]) is narrowest([]) is None


def test_sound_topologies_are_told_in_a_line():
    assert verdicts.topology(DGX).text == "all 28 pairs over NVLink x 18 (478 GB/s each way), PCIe 5.0 x16 (63 GB/s)"
    assert verdicts.topology(PCIE).text == (
        "2 of 6 pairs through several PCIe switches (PXB), 4 of 6 pairs between processors (SYS), "
        "PCIe 4.0 x16 (31.5 GB/s)"
    )
    assert verdicts.topology(DGX).status is verdicts.topology(PCIE).status is Status.OK


def test_links_that_are_down_and_lanes_that_lack_are_warnings():
    worn = replace(DGX, gpus=[*DGX.gpus[:7], replace(DGX.gpus[7], links=[SWITCH] * 16, links_down=2)])
    found = verdicts.topology(worn)
    assert found.status is Status.WARNING
    assert "21 of 28 pairs over NVLink x 18 (478 GB/s each way), 7 of 28 pairs over NVLink x 16" in found.text
    assert found.text.endswith("GPU 7 has 16 NVLinks up and 2 down, others 18 up")
    dead = replace(DGX, gpus=[*DGX.gpus[:7], replace(DGX.gpus[7], links=[], links_down=18)])
    assert verdicts.topology(dead).text.endswith("GPU 7 has 0 NVLinks up and 18 down, others 18 up")
    bridged = [replace(PCIE.gpus[i], links=[PCIE.gpus[1 - i].place] * 4, links_down=0) for i in (0, 1)]
    assert verdicts.topology(replace(PCIE, gpus=[*bridged, *PCIE.gpus[2:]])).status is Status.OK
    narrow = verdicts.topology(WORKSTATION)
    assert (narrow.status, narrow.text) == (
        Status.WARNING,
        "PCIe 4.0 x8 (15.8 GB/s): GPU 0 uses 8 of 16 PCIe lanes",
    )
    assert "reseat" in found.remedy
    assert "slot" in narrow.remedy


def test_copies_at_the_speed_of_the_links_are_fine_and_shown_as_a_matrix():
    found = verdicts.copies(PCIE, copied(PCIE, lambda i, j: 26.1 if i // 2 == j // 2 else 11.2))
    assert found.status is Status.OK
    assert found.text.splitlines() == [
        "copies arrive intact, with P2P, at 11.2 GB/s to 26.1 GB/s",
        "GB/s       0      1      2      3",
        "   0           26.1   11.2   11.2",
        "   1    26.1          11.2   11.2",
        "   2    11.2   11.2          26.1",
        "   3    11.2   11.2   26.1",
    ]


def test_copies_through_the_host_are_marked_and_no_warning_without_nvlink():
    closed = [[i == j or i // 2 == j // 2 for j in range(4)] for i in range(4)]
    found = verdicts.copies(PCIE, copied(PCIE, lambda i, j: 26.1 if i // 2 == j // 2 else 5.4, access=closed))
    assert found.status is Status.OK
    assert found.text.startswith("copies arrive intact, 4 of 12 with P2P, at 5.4 GB/s to 26.1 GB/s\n")
    assert found.text.endswith("\n*: through the host's memory, without P2P")


@pytest.mark.parametrize(
    ("found", "status", "text", "remedy"),
    [
        # An IOMMU translates: the first thing to go wrong is the data.
        (
            copied(PCIE, lambda i, j: 2.0, wrong=[[1, 0], [2, 3]]),
            Status.FAILED,
            "copies between GPUs arrive changed: from 1 to 0, from 2 to 3; training would compute wrong results",
            "NCCL_P2P_DISABLE=1",
        ),
        (
            copied(PCIE, lambda i, j: 26.1 if (i, j) != (3, 2) else 2.2),
            Status.WARNING,
            "1 of 12 copies are slow: from 3 to 2 2.2 GB/s, and the link is for 31.5 GB/s",
            "iommu",
        ),
        ({"problem": "CUDARuntimeError: cudaErrorSystemNotReady"}, Status.FAILED, "fails: CUDARuntimeError", "dmesg"),
        ({"skipped": "GPU tensors need cupy"}, Status.NOT_TRIED, "not checked: GPU tensors need cupy", ""),
        (copied(WORKSTATION, lambda i, j: 0), Status.NOT_TRIED, "not checked: there is one GPU", ""),
    ],
)
def test_copies_that_fail_or_are_slow(found, status, text, remedy):
    verdict = verdicts.copies(PCIE, found)
    assert verdict.status is status
    assert text in verdict.text
    assert remedy in verdict.remedy


def test_nvlink_without_access_is_a_case_for_the_fabric_manager():
    closed = [[i == j for j in range(8)] for i in range(8)]
    found = verdicts.copies(DGX, copied(DGX, lambda i, j: 9.0, access=closed))
    assert "56 pairs have NVLink and no access to each other's memory, such as 0 to 1" in found.text
    assert found.remedy == "start nvidia-fabricmanager, in the driver's version, and see nvidia-smi topo -p2p r"


def test_gpus_that_cuda_numbers_otherwise_are_not_compared_with_their_links():
    places = [gpu.place for gpu in reversed(PCIE.gpus)]
    assert verdicts.copies(PCIE, copied(PCIE, lambda i, j: 0.1, places=places)).status is Status.OK


def test_an_allreduce_is_compared_with_the_narrowest_link():
    found = verdicts.allreduce(DGX, copied(DGX, lambda i, j: 391.0), SUM)
    assert (found.status, found.text) == (
        Status.OK,
        "an allreduce of 256 MiB by 8 ranks has a bus bandwidth of 362 GB/s; the narrowest link on the way, over "
        "NVLink, is for 478 GB/s, and a copy reaches 391 GB/s",
    )
    assert verdicts.allreduce(PCIE, {}, {**SUM, "ranks": 4, "rate": 9e9}).status is Status.OK
    slow = verdicts.allreduce(PCIE, copied(PCIE, lambda i, j: 11.2), {**SUM, "ranks": 4, "rate": 1.1e9})
    assert slow.status is Status.WARNING
    assert re.search(r"between processors \(SYS\), is for 31.5 GB/s, and a copy reaches 11.2 GB/s: that is", slow.text)
    assert "NCCL_DEBUG=INFO" in slow.remedy


@pytest.mark.parametrize(
    ("found", "status", "text"),
    [
        ({**SUM, "wrong": [0, 1, 5]}, Status.FAILED, "an allreduce of 256 MiB by 8 ranks computes wrong sums on ranks"),
        ({"problem": "gave up after 20 s"}, Status.FAILED, "the allreduce of a rank on each GPU fails: gave up after"),
        ({"skipped": "there is one GPU"}, Status.NOT_TRIED, "not checked: there is one GPU"),
        ({**SUM, "ranks": 2}, Status.OK, "an allreduce of 256 MiB by 2 ranks has a bus bandwidth of 362 GB/s"),
    ],
)
def test_an_allreduce_that_fails_or_cannot_be_compared(found, status, text):
    verdict = verdicts.allreduce(DGX, {}, found)
    assert verdict.status is status
    assert verdict.text.startswith(text)
