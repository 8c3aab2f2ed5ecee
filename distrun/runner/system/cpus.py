"""The CPUs of this machine, by cores, sockets and NUMA nodes, and each rank's share of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

_SYSTEM = Path("/sys/devices/system")


def share(kind: str, index: int, count: int) -> set[int]:
    """Return one rank's share of the CPUs that this process may use, if `count` ranks share them.

    Args:
        kind: `core`, `socket` or `numa`: the unit, which is divided only if there are fewer units than ranks.
        index: the rank's index among these ranks.
        count: the number of ranks.
    """
    return divided(groups(kind, os.sched_getaffinity(0)), index, count)


def groups(kind: str, allowed: Collection[int], system: Path = _SYSTEM) -> list[set[int]]:
    """Return the allowed CPUs in groups: the hardware threads of a core, the CPUs of a socket, or of a NUMA node.

    Groups that are near each other on the machine are adjacent in the list. CPUs without information in /sys, as in
    some containers, count as separate cores on one socket and node.
    """
    nodes = {cpu: number for number, cpus in _numa_nodes(system) for cpu in cpus}
    found: dict[tuple[int, ...], set[int]] = {}
    for cpu in sorted(allowed):
        topology = system / "cpu" / f"cpu{cpu}" / "topology"
        node, socket = nodes.get(cpu, 0), int(_read(topology / "physical_package_id") or 0)
        core = min(parse_cpus(_read(topology / "thread_siblings_list")), default=cpu)
        key = {"core": (node, socket, core), "socket": (socket,), "numa": (node,)}[kind]
        found.setdefault(key, set()).add(cpu)
    return [found[key] for key in sorted(found)]


def divided(groups: Sequence[set[int]], index: int, count: int) -> set[int]:
    """Return the CPUs of one of `count` ranks. The numbers of groups per rank differ by one at most. With fewer groups
    than ranks, each rank gets one group, which it shares.
    """
    first = index * len(groups) // count
    last = max(first + 1, (index + 1) * len(groups) // count)
    return set().union(*groups[first:last])


def parse_cpus(text: str) -> set[int]:
    """Return the CPUs in a list in the kernel's notation, such as `0-3,8`."""
    ranges = (entry.partition("-") for entry in text.split(",") if entry)
    return {cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)}


def format_cpus(cpus: Iterable[int]) -> str:
    """Return the CPUs as a list in the kernel's notation, the inverse of `parse_cpus`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _numa_nodes(system: Path) -> Iterable[tuple[int, set[int]]]:
    for node in (system / "node").glob("node[0-9]*"):
        yield int(node.name.removeprefix("node")), parse_cpus(_read(node / "cpulist"))


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
