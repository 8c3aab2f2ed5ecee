"""Verdicts on what lies between GPUs and processors: IOMMU, ACS and NUMA nodes. Pure."""

from __future__ import annotations

from distrun.runner.system.cpus import format_cpus
from distrun.tools.doctor.gpu_checks.kernel import KernelFacts
from distrun.tools.doctor.gpu_checks.words import judged, named, unchecked
from distrun.tools.doctor.report import HostCheck, Status


def iommu(facts: KernelFacts, gpus: int) -> HostCheck:
    """Judge the IOMMU, and ACS in the bridges above the GPUs."""
    translated = [number for number, kind in enumerate(facts.groups) if kind.startswith("DMA")]
    words = f" ({' '.join(facts.options)})" if facts.options else ""
    text = "no IOMMU" if not facts.iommus else f"IOMMU {', '.join(facts.iommus[:2])} on, no GPU's traffic translated"
    text = (f"the traffic of {named(translated)} is translated" if translated else text) + words
    if facts.virtual:
        return HostCheck(
            "iommu", Status.OK, f"{text}; a virtual machine, in which the host decides about IOMMU and ACS"
        )
    troubles = []
    if translated and gpus > 1:
        troubles.append(
            (
                "copies between GPUs may be slow, wrong or hang",
                "boot with iommu=pt, or turn the IOMMU (VT-d, AMD-Vi) off in the firmware",
            )
        )
    if facts.redirecting and gpus > 1:
        troubles.append(
            (
                f"ACS of {len(facts.redirecting)} of {facts.bridges} bridges, such as {facts.redirecting[0]}, sends "
                "what GPUs send each other through the processor",
                "turn ACS off in the firmware, or with setpci in each bridge (see NCCL's troubleshooting)",
            )
        )
    acs = "" if facts.redirecting else f", ACS redirects in none of {facts.bridges} bridges"
    if facts.redirecting is None:
        acs = ", ACS not checked: only root may read it"
    return judged("iommu", text + acs, troubles)


def numa(facts: KernelFacts) -> HostCheck:
    """Judge whether ranks may use, and are bound to, the processors near their GPUs."""
    if not facts.allowed or all(node < 0 for node in facts.nodes):
        return unchecked("numa", "the kernel does not tell the NUMA nodes of GPUs and processors")
    nodes = ", ".join(
        f"{named([gpu for gpu, other in enumerate(facts.nodes) if other == node])} on node {node}"
        for node in sorted(set(facts.nodes))
    )
    text = f"{nodes}; ranks may use processors of node{'s' * (len(facts.allowed) > 1)} {format_cpus(facts.allowed)}"
    far = [gpu for gpu, node in enumerate(facts.nodes) if node >= 0 and node not in facts.allowed]
    if far:
        return judged(
            "numa",
            text,
            [
                (
                    f"{named(far)} are far from all of them"
                    if len(far) > 1
                    else f"{named(far)} is far from all of them",
                    "let ranks use the processors near them, too: see taskset, the container's cpuset, or the "
                    "scheduler's request for cores",
                )
            ],
        )
    wrong = {
        kind: [
            rank
            for rank, (bound, node) in enumerate(zip(ranks, facts.nodes, strict=True))
            if node >= 0 and node not in bound
        ]
        for kind, ranks in facts.bound.items()
    }
    kinds = [kind for kind, ranks in wrong.items() if ranks]
    if not kinds:
        return HostCheck("numa", Status.OK, f"{text}, and with --bind-to each rank gets those near its GPU")
    order = ",".join(map(str, sorted(range(len(facts.nodes)), key=lambda gpu: facts.nodes[gpu])))
    trouble = f"--bind-to {' or '.join(kinds)} would put ranks {format_cpus(wrong[kinds[0]])} far from their GPUs"
    return judged("numa", text, [(trouble, f"give no --bind-to, or order the GPUs: CUDA_VISIBLE_DEVICES={order}")])
