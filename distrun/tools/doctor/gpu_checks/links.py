"""The link between two GPUs: NVLinks, or a way through PCI bridges, and the bytes per second that it carries. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distrun.tools.doctor.gpu_checks.nvml import SWITCH, GpuState, GpuStates

# NVML's levels in the words of `nvidia-smi topo -m`, and what each crosses.
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
MEANINGS = {
    "NV": "over NVLink",
    "PIX": "through one PCIe switch (PIX)",
    "PXB": "through several PCIe switches (PXB)",
    "PHB": "through a processor's PCIe host bridge (PHB)",
    "NODE": "between PCIe host bridges of a NUMA node (NODE)",
    "SYS": "between processors (SYS)",
    "": "in a way that NVML does not tell",
}
_SINGLE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""The bytes per second of PCIe x1, one way, by its generation."""


@dataclass(frozen=True)
class Link:
    """The link between two GPUs."""

    kind: str
    """A key of `MEANINGS`."""
    nvlinks: int = 0
    rate: float | None = None
    """The bytes per second that it carries one way, by its specification."""

    @property
    def least(self) -> float | None:
        """The bytes per second below which it is slow: half of `rate`, or a quarter if processors are on the way."""
        if self.rate is None:
            return None
        return self.rate / (2 if self.kind in ("NV", "PIX", "PXB") else 4)


def between(states: GpuStates, one: int, other: int) -> Link:
    """Return the link between two GPUs."""
    ends = states.gpus[one], states.gpus[other]
    nvlinks = ends[0].links.count(ends[1].place) or min(end.links.count(SWITCH) for end in ends)
    if nvlinks:
        speeds = [end.link_speed for end in ends if end.link_speed]
        return Link("NV", nvlinks, nvlinks * min(speeds) * 1e6 if speeds else None)
    level, rates = states.ancestors[one][other], [rate for end in ends if (rate := pcie_rate(end))]
    kind = "" if level is None else _LEVELS.get(level, "")
    return Link(kind, 0, min(rates) if len(rates) == len(ends) else None)


def pcie_rate(gpu: GpuState) -> float | None:
    """Return the bytes per second of a GPU's PCIe link, one way, or None if they are not known."""
    return _SINGLE[gpu.pcie_generation] * gpu.pcie_width if gpu.pcie_generation in _SINGLE and gpu.pcie_width else None


def narrowest(rates: Sequence[Sequence[float | None]]) -> tuple[int, int] | None:
    """Return the pair of GPUs that any ring over all of them has to cross, or a faster one, or None if rates lack.

    It is the slowest pair of the maximum spanning tree. Unknown rates on the diagonal do not matter.
    """
    reached, pairs = {0}, []
    while len(reached) < len(rates):
        outwards = [(rates[i][j], i, j) for i in reached for j in range(len(rates)) if j not in reached]
        known = [(rate, i, j) for rate, i, j in outwards if rate is not None]
        if not known:
            return None
        pairs.append(max(known))
        reached.add(pairs[-1][2])
    return min(pairs)[1:] if pairs else None
