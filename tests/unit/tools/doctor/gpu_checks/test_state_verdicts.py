"""The doctor's judgement of the state of GPUs, and of what lies between them and the processors."""

from dataclasses import replace

import pytest
from machines.nvml import DGX, PCIE, WORKSTATION, h100

from distrun.tools.doctor.gpu_checks import bus_verdicts as bus, state_verdicts as state
from distrun.tools.doctor.gpu_checks.kernel import KernelFacts
from distrun.tools.doctor.gpu_checks.xids import Xid
from distrun.tools.doctor.report import Status

NEAR = {kind: [[0], [0], [1], [1]] for kind in ("numa", "socket", "core")}
SOUND = KernelFacts(
    iommus=["dmar0", "dmar1"],
    groups=["identity"] * 4,
    options=["intel_iommu=on", "iommu=pt"],
    bridges=6,
    redirecting=[],
    nodes=[0, 0, 1, 1],
    allowed=[0, 1],
    bound=NEAR,
)


@pytest.mark.parametrize(
    ("facts", "gpus", "status", "text", "remedy"),
    [
        (
            SOUND,
            4,
            Status.OK,
            "IOMMU dmar0, dmar1 on, no GPU's traffic translated (intel_iommu=on iommu=pt), ACS redirects in none of 6 "
            "bridges",
            "",
        ),
        (KernelFacts(bridges=2, redirecting=[]), 2, Status.OK, "no IOMMU, ACS redirects in none of 2 bridges", ""),
        (
            replace(SOUND, groups=["DMA-FQ"] * 4, options=["intel_iommu=on"]),
            4,
            Status.WARNING,
            "the traffic of GPUs 0-3 is translated (intel_iommu=on), ACS redirects in none of 6 bridges: copies "
            "between GPUs may be slow, wrong or hang",
            "boot with iommu=pt, or turn the IOMMU (VT-d, AMD-Vi) off in the firmware",
        ),
        (
            replace(SOUND, options=[], redirecting=["0000:c9:02.0", "0000:c9:03.0"]),
            4,
            Status.WARNING,
            "IOMMU dmar0, dmar1 on, no GPU's traffic translated: ACS of 2 of 6 bridges, such as 0000:c9:02.0, sends "
            "what GPUs send each other through the processor",
            "turn ACS off in the firmware, or with setpci in each bridge (see NCCL's troubleshooting)",
        ),
        (replace(SOUND, groups=["DMA"] * 4), 1, Status.OK, "the traffic of GPUs 0-3 is translated", ""),
        (replace(SOUND, redirecting=None), 4, Status.OK, "ACS not checked: only root may read it", ""),
        (
            replace(SOUND, virtual=True, groups=["DMA"] * 4),
            4,
            Status.OK,
            "a virtual machine, in which the host decides about IOMMU and ACS",
            "",
        ),
    ],
)
def test_iommu_and_acs(facts, gpus, status, text, remedy):
    found = bus.iommu(facts, gpus)
    assert found.status is status
    assert text in found.text
    assert found.remedy == remedy


@pytest.mark.parametrize(
    ("facts", "status", "text", "remedy"),
    [
        (
            SOUND,
            Status.OK,
            "GPUs 0-1 on node 0, GPUs 2-3 on node 1; ranks may use processors of nodes 0-1, and with --bind-to each "
            "rank gets those near its GPU",
            "",
        ),
        (
            replace(SOUND, allowed=[0]),
            Status.WARNING,
            "ranks may use processors of node 0: GPUs 2-3 are far from all of them",
            "let ranks use the processors near them, too: see taskset, the container's cpuset, or the scheduler's "
            "request for cores",
        ),
        (
            replace(SOUND, nodes=[1, 1, 0, 0]),
            Status.WARNING,
            ": --bind-to numa or socket or core would put ranks 0-3 far from their GPUs",
            "give no --bind-to, or order the GPUs: CUDA_VISIBLE_DEVICES=2,3,0,1",
        ),
        (
            replace(SOUND, nodes=[-1] * 4),
            Status.NOT_TRIED,
            "not checked: the kernel does not tell the NUMA nodes of GPUs and processors",
            "",
        ),
    ],
)
def test_processors_near_gpus(facts, status, text, remedy):
    found = bus.numa(facts)
    assert found.status is status
    assert text in found.text
    assert found.remedy == remedy


@pytest.mark.parametrize(
    ("running", "modes", "status", "text", "remedy"),
    [
        (False, [0, 0], Status.OK, "MPS does not run: ranks that share a GPU (--share-gpus) take turns", ""),
        (True, [0, 3], Status.OK, "MPS runs: ranks that share a GPU (--share-gpus) compute at once", ""),
        (False, [0, 3], Status.WARNING, ": one process at a time may use GPU 1 (Exclusive_Process)", "start MPS"),
        (True, [2, 2], Status.WARNING, ": no process may use GPUs 0-1 (compute mode Prohibited)", "-c DEFAULT"),
    ],
)
def test_mps_and_compute_modes(running, modes, status, text, remedy):
    found = state.mps(running, [h100("a", compute_mode=mode) for mode in modes])
    assert found.status is status
    assert text in found.text
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("gpus", "status", "text"),
    [
        (DGX.gpus, Status.OK, "ECC is on, and no error went uncorrected"),
        (
            [h100("a"), h100("b", uncorrected_ever=3)],
            Status.OK,
            "ECC is on, and no error went uncorrected since the driver was loaded; GPU 1 had some before",
        ),
        (WORKSTATION.gpus, Status.OK, "these GPUs have no ECC, or do not tell"),
        (
            [h100("a"), h100("b", uncorrected=2, uncorrected_ever=5)],
            Status.WARNING,
            "ECC is on: GPU 1 has had 2 memory errors that ECC did not correct since the driver was loaded, 5 in its "
            "life",
        ),
        ([h100("a", ecc=False)], Status.WARNING, "ECC is off on GPU 0, where flipped bits go unnoticed"),
    ],
)
def test_ecc(gpus, status, text):
    found = state.ecc(gpus)
    assert (found.status, found.text) == (status, text)
    assert bool(found.remedy) is (status is Status.WARNING)


def test_clocks_and_persistence_mode():
    assert state.clocks(DGX.gpus).text == "nothing slows the GPUs down: 345 of 1980 MHz at 31 degrees"
    assert state.clocks(PCIE.gpus).status is Status.OK
    hot = state.clocks(WORKSTATION.gpus)
    assert hot.status is Status.WARNING
    assert hot.text == (
        "GPU 0 is slowed down by heat: 810 of 2520 MHz at 92 degrees; persistence mode is off on GPU 0, so that a "
        "program waits for the driver at its start"
    )
    assert hot.remedy.endswith("; start nvidia-persistenced, or nvidia-smi -pm 1")
    brake, capped = (state.clocks([h100("a", throttle=bits)]) for bits in (0x88, 0x6))
    assert "GPU 0 is slowed down by its power supply" in brake.text
    assert capped.status is Status.OK  # as under any load, and with the clocks of the factory
    assert state.clocks([h100("a", throttle=None)]).text == "the reasons for the clocks are not told"


def test_errors_in_the_kernel_log():
    assert state.xid([], "", DGX.gpus).status is Status.OK
    unread = state.xid([], "/dev/kmsg: Operation not permitted", DGX.gpus)
    assert (unread.status, unread.text) == (
        Status.NOT_TRIED,
        "not checked: the kernel's log cannot be read (/dev/kmsg: Operation not permitted)",
    )
    program = state.xid([Xid("0000:43:00", 31, 2, "MMU Fault")], "", DGX.gpus)
    assert (program.status, program.text) == (Status.OK, "errors that programs cause (Xid): 2 x 31 on GPU 1")
    errors = [Xid("0000:43:00", 31, 2, ""), Xid("0000:df:00", 79, 1, "gone"), Xid("0000:02:00", 999, 1, "new")]
    found = state.xid(errors, "", DGX.gpus)
    assert found.status is Status.WARNING
    assert found.text == (
        "errors that programs cause (Xid): 2 x 31 on GPU 1: Xid 79 on GPU 7, 1 x: the GPU has fallen off the bus; "
        "Xid 999 on the GPU at 0000:02:00, 1 x: new"
    )
