"""Verdicts on what connects GPUs, and on copies and an allreduce between them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

from distrun.runner.system.cpus import format_cpus
from distrun.tools.doctor.gpu_checks.links import MEANINGS, Link, between, narrowest, pcie_rate
from distrun.tools.doctor.gpu_checks.nvml import SWITCH, GpuStates
from distrun.tools.doctor.gpu_checks.words import gigabytes, judged, unchecked
from distrun.tools.doctor.report import HostCheck, Status

_WRONG = (
    "set NCCL_P2P_DISABLE=1 until it is mended, and boot with iommu=pt or turn the IOMMU and ACS off in the firmware"
)

Rates = Sequence[Sequence[float | None]]
"""The bytes per second from one GPU to another, None from a GPU to itself."""


def topology(states: GpuStates) -> HostCheck:
    """Judge the links between GPUs, and from each to PCIe."""
    gpus = states.gpus
    pairs = [between(states, *pair) for pair in combinations(range(len(gpus)), 2)]
    counts = Counter((link.kind, link.nvlinks, link.rate if link.nvlinks else None) for link in pairs)
    parts = [_pairs(count, Link(*kind), len(pairs)) for kind, count in counts.items()]
    buses = Counter((gpu.pcie_generation, gpu.pcie_width, pcie_rate(gpu)) for gpu in gpus)
    parts += [
        f"PCIe {generation}.0 x{width} ({gigabytes(rate)})" + f" on {count} GPUs" * (len(buses) > 1)
        for (generation, width, rate), count in buses.items()
        if rate
    ]
    troubles = []
    most = max((len(gpu.links) for gpu in gpus), default=0)
    has_switch = any(SWITCH in gpu.links for gpu in gpus)
    for index, gpu in enumerate(gpus):
        is_linked = has_switch or gpu.links  # else it has no bridge, as others may have
        if is_linked and gpu.links_down and most > len(gpu.links):
            what = f"GPU {index} has {len(gpu.links)} NVLinks up and {gpu.links_down} down, others {most} up"
            troubles.append((what, "see nvidia-smi nvlink -s, and reset or reseat the GPU and its bridge"))
        if gpu.pcie_width and gpu.widest_pcie and gpu.pcie_width < gpu.widest_pcie:
            what = f"GPU {index} uses {gpu.pcie_width} of {gpu.widest_pcie} PCIe lanes"
            troubles.append((what, "move the GPU to a slot with all lanes, or reseat it and its riser"))
    return judged("topology", ", ".join(parts) or "NVML tells nothing of links", troubles)


def _pairs(count: int, link: Link, pairs: int) -> str:
    which = f"all {pairs} pairs" if count == pairs > 1 else f"{count} of {pairs} pairs" if pairs > 1 else "the pair"
    speed = f" ({gigabytes(link.rate)} each way)" if link.rate else ""
    return f"{which} {MEANINGS[link.kind]}" + (f" x {link.nvlinks}{speed}" if link.nvlinks else "")


def copies(states: GpuStates, found: dict[str, Any]) -> HostCheck:
    """Judge the object that the program `copies` prints."""
    if reason := found.get("skipped"):
        return unchecked("p2p", reason)
    if reason := found.get("problem"):
        return HostCheck(
            "p2p", Status.FAILED, f"copying between GPUs fails: {reason}", remedy="see nvidia-smi and dmesg"
        )
    rates, access = found["rates"], found["access"]
    count = len(rates)
    if count < 2:
        return unchecked("p2p", "there is one GPU")
    matrix = _matrix(rates, access)
    if found["wrong"]:
        wrong = ", ".join(f"from {one} to {other}" for one, other in found["wrong"])
        text = f"copies between GPUs arrive changed: {wrong}; training would compute wrong results"
        return HostCheck("p2p", Status.FAILED, text + matrix, remedy=_WRONG)
    able = sum(map(sum, access)) - count
    known = [rate for row in rates for rate in row if rate is not None]
    how = "with P2P" if able == len(known) else "without P2P" if not able else f"{able} of {len(known)} with P2P"
    text = f"copies arrive intact, {how}, at {gigabytes(min(known))} to {gigabytes(max(known))}"
    is_same = found["places"] == [gpu.place for gpu in states.gpus]
    verdict = judged("p2p", text, _troubles(states, rates, access) if is_same else [])
    return replace(verdict, text=verdict.text + matrix)


def _troubles(states: GpuStates, rates: Rates, access: Sequence[Sequence[bool]]) -> list[tuple[str, str]]:
    """Return what is wrong with pairs that have NVLink and no P2P, and with those whose copies are slow."""
    pairs = [(one, other, between(states, one, other)) for one, other in permutations(range(len(rates)), 2)]
    closed = [(one, other) for one, other, link in pairs if link.kind == "NV" and not access[one][other]]
    slow = [
        (rate / link.rate, f"from {one} to {other} {gigabytes(rate)}, and the link is for {gigabytes(link.rate)}")
        for one, other, link in pairs
        if access[one][other] and (rate := rates[one][other]) and link.rate and rate < (link.least or 0)
    ]
    troubles = []
    if closed:
        one, other = closed[0]
        what = f"{len(closed)} pairs have NVLink and no access to each other's memory, such as {one} to {other}"
        has_switch = any(SWITCH in gpu.links for gpu in states.gpus)
        remedy = "start nvidia-fabricmanager, in the driver's version, and " if has_switch else ""
        troubles.append((what, f"{remedy}see nvidia-smi topo -p2p r"))
    if slow:
        remedy = "see the step iommu and nvidia-smi nvlink -s, and let nothing else use the GPUs meanwhile"
        troubles.append((f"{len(slow)} of {len(pairs)} copies are slow: {min(slow)[1]}", remedy))
    return troubles


def _matrix(rates: Rates, access: Sequence[Sequence[bool]]) -> str:
    """Return the rates as lines of text. Rows send. A star marks copies through the host's memory."""
    cells = [
        ["" if rate is None else f"{rate / 1e9:.3g}" + "*" * (not able) for rate, able in zip(*row, strict=True)]
        for row in zip(rates, access, strict=True)
    ]
    head = "GB/s " + "".join(f"{column:>7}" for column in range(len(rates)))
    rows = [f"{number:4} {''.join(f'{cell:>7}' for cell in row)}".rstrip() for number, row in enumerate(cells)]
    note = ["*: through the host's memory, without P2P"] * any(cell.endswith("*") for row in cells for cell in row)
    return "\n" + "\n".join([head, *rows, *note])


def allreduce(states: GpuStates, copied: dict[str, Any], found: dict[str, Any]) -> HostCheck:
    """Judge the object that the program `ranks` prints, beside the objects that NVML and `copies` give."""
    if reason := found.get("skipped"):
        return unchecked("nccl", reason)
    if reason := found.get("problem"):
        return HostCheck(
            "nccl",
            Status.FAILED,
            f"the allreduce of a rank on each GPU fails: {reason}",
            remedy="run it by hand, and see whether it runs with NCCL_P2P_DISABLE=1",
        )
    what = f"an allreduce of {found['bytes'] >> 20} MiB by {found['ranks']} ranks"
    if found["wrong"]:
        text = f"{what} computes wrong sums on ranks {format_cpus(found['wrong'])}"
        return HostCheck("nccl", Status.FAILED, text, remedy=_WRONG)
    text = f"{what} has a bus bandwidth of {gigabytes(found['rate'])}"
    count, rates = len(states.gpus), copied.get("rates", [])
    least = [[None if i == j else between(states, i, j).least for j in range(count)] for i in range(count)]
    pair = narrowest(least) if count == found["ranks"] else None
    if pair is None:
        return HostCheck("nccl", Status.OK, text)
    link = between(states, *pair)
    measured = rates[pair[0]][pair[1]] if len(rates) == count else None
    beside = f", and a copy reaches {gigabytes(measured)}" if measured else ""
    text += f"; the narrowest link on the way, {MEANINGS[link.kind]}, is for {gigabytes(link.rate or 0)}{beside}"
    slow = link.least is not None and found["rate"] < link.least
    remedy = "see the steps p2p and iommu, and which way NCCL takes with NCCL_DEBUG=INFO"
    return judged("nccl", text, [("that is slow", remedy)] if slow else [])
