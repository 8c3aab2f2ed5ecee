"""Verdicts on the findings about a host: thresholds, and sentences with remedies. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from distrun.host.ranks import count
from distrun.tools.doctor.gpus import Gpus
from distrun.tools.doctor.machine_facts import MachineFacts
from distrun.tools.doctor.report import HostCheck, Status

CLOCK_TOLERANCE = 1.0  # seconds
SMALL_SHM = 64 << 20  # bytes: the default of a container
_CUDA12, _CUDA13 = 12000, 13000
# The border between the reason and the remedy in the sentences of HostError.
_REMEDY = re.compile(
    r"; (?=correct it|is it up|does sshd|try |give |run there |or allow|somebody may|if that is|it offers)"
)


def split_remedy(sentence: str) -> tuple[str, str]:
    """Return the reason and the remedy, which may be empty, from a sentence of `HostError`."""
    reason, *rest = _REMEDY.split(sentence, maxsplit=1)
    return reason, "".join(rest)


def clock(offset: float, round_trip: float) -> HostCheck:
    """Judge a host's offset from this machine's clock in seconds, which is uncertain by half the round trip."""
    text = f"{seconds(abs(offset))} {'ahead' if offset > 0 else 'behind'}, give or take {seconds(round_trip / 2)}"
    if abs(offset) - round_trip / 2 <= CLOCK_TOLERANCE:
        return HostCheck("clock", Status.OK, text)
    return HostCheck(
        "clock",
        Status.WARNING,
        f"{text}: time stamps of files and logs will mislead",
        remedy="start a time service there, such as chrony or systemd-timesyncd",
    )


def machine(found: MachineFacts) -> HostCheck:
    """Judge cores, memory, /dev/shm and the limit of the address space."""
    shm = "no /dev/shm" if found.shm is None else f"/dev/shm {size(found.shm)}"
    text = f"{count(found.cores, 'core')}, {size(found.memory)} of memory ({size(found.available)} free), {shm}"
    troubles, remedies = [], []
    if found.shm is None or found.shm <= SMALL_SHM:
        troubles.append("data loaders and NCCL need more shared memory")
        remedies.append("enlarge /dev/shm: 'docker run --shm-size=8g', or 'mount -o remount,size=50% /dev/shm'")
    if found.address_space is not None:
        troubles.append(
            f"the address space of a process is limited to {size(found.address_space)}, and frameworks, CUDA and the "
            "memory that ranks share may need more"
        )
        remedies.append("lift the limit with 'ulimit -v unlimited', or in /etc/security/limits.conf ('as')")
    if not troubles:
        return HostCheck("machine", Status.OK, text)
    return HostCheck("machine", Status.WARNING, f"{text}: {'; '.join(troubles)}", remedy="; ".join(remedies))


def twins(machines: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the hosts that are the same machine as an earlier one, each with the earlier host's name.

    Each host comes with a text that identifies its machine, empty if that is not known.
    """
    first: dict[str, str] = {}
    return {host: name for host, text in machines if text and (name := first.setdefault(text, host)) != host}


def twin(name: str) -> HostCheck:
    """Return the verdict on a host that is the same machine as the host `name`."""
    return HostCheck(
        "machine",
        Status.FAILED,
        f"it is the same machine as {name}, and their ranks would use the same GPUs",
        remedy=f"list it once, as {name}, with the slots of both",
    )


def gpus(found: Gpus) -> HostCheck:
    """Judge GPUs, driver, NCCL and the access between GPUs."""
    text = _gpu_text(found)
    if found.problem:
        return HostCheck(
            "gpus", Status.FAILED, f"{text}{found.problem}", remedy="load or repair the NVIDIA driver there"
        )
    if not found.names:
        return HostCheck("gpus", Status.OK, "none")
    troubles, remedies = [], []
    missing = ["cupy"] * (not found.cupy) + ["NCCL"] * (not found.nccl)
    if missing:
        troubles.append(f"{' and '.join(missing)} cannot be found, which tensors on GPUs need")
        remedies.append(_installation(found.cuda))
    if found.cupy == "cupy-cuda13x" and 0 < found.cuda < _CUDA13:
        troubles.append(f"cupy-cuda13x does not work with this driver, which is for CUDA {_cuda(found.cuda)}")
        remedies.append("update the driver, or pip uninstall cupy-cuda13x and pip install 'distrun[cuda12]'")
    if len(found.names) > 1 and found.iommu:
        troubles.append(
            "an IOMMU translates the traffic between GPUs, which may be slow, wrong or hang on a machine that is no "
            "virtual one"
        )
        remedies.append("boot with iommu=pt, or turn the IOMMU (VT-d, AMD-Vi) and ACS off in the firmware")
    status = Status.WARNING if troubles else Status.OK
    warning = f": {'; '.join(troubles)}" if troubles else ""
    return HostCheck("gpus", status, text + warning + _peer_matrix(found), remedy="; ".join(remedies))


def no_gpu() -> HostCheck:
    """Return the verdict on a host without a GPU whose GPUs were to be checked."""
    return HostCheck(
        "gpus",
        Status.WARNING,
        "there is no NVIDIA GPU, or its driver does not show it here, so that --gpu has nothing to check",
        remedy="run it on a host with GPUs; a container must be started with them (docker run --gpus all)",
    )


def _installation(cuda: int) -> str:
    """Return the command that installs cupy and NCCL for a driver with this CUDA, or another remedy."""
    if not cuda:
        return "pip install 'distrun[cuda12]' or 'distrun[cuda13]', as the driver's CUDA is"
    if cuda < _CUDA12:
        return f"update the driver, which is for CUDA {_cuda(cuda)}: cupy needs one for CUDA 12"
    return f"pip install 'distrun[cuda{13 if cuda >= _CUDA13 else 12}]'"


def _cuda(version: int) -> str:
    """Return a version such as 12.4 from its number, 12040."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _gpu_text(found: Gpus) -> str:
    if not found.names:
        return ""
    counts = {name: found.names.count(name) for name in found.names}
    names = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
    memory = f" ({size(min(found.memory))} each)" if found.memory else ""
    cuda = f" for CUDA {_cuda(found.cuda)}" if found.cuda else ""
    parts = [f"{names}{memory}", f"driver {found.driver}{cuda}"] + [f"NCCL {found.nccl}"] * bool(found.nccl)
    if found.peers is not None and len(found.peers) > 1:
        parts.append(_peer_text(found.peers))
    return ", ".join(parts) + (": " if found.problem else "")


def _peer_text(peers: Sequence[Sequence[bool]]) -> str:
    pairs = len(peers) * (len(peers) - 1)
    able = sum(map(sum, peers)) - len(peers)
    if able == pairs:
        return "all can access each other's memory (P2P)"
    return "none can access another's memory (no P2P)" if not able else f"{able} of {pairs} pairs have P2P"


def _peer_matrix(found: Gpus) -> str:
    """Return lines that show which GPU can access which, or "" if all can or none."""
    peers = found.peers or []
    if not 0 < sum(map(sum, peers)) - len(peers) < len(peers) * (len(peers) - 1):
        return ""
    head = "P2P " + " ".join(f"{column:2}" for column in range(len(peers)))
    # x: the GPU of the row can access the memory of the GPU of the column.
    rows = [f"{row:3} " + " ".join(" x" if able else " -" for able in ables) for row, ables in enumerate(peers)]
    return "\n" + "\n".join([head, *rows])


def software(found: MachineFacts) -> HostCheck:
    """List the installed software. It is never a failure, because none of it is required."""
    packages = [f"{name} {version}" for name, version in found.packages.items()]
    mpi = [f"MPI: {found.mpi}"] if found.mpi else ["no mpirun"]
    slurm = [f"Slurm: {found.slurm}"] if found.slurm else ["no srun"]
    kernels = [found.kernels] if found.kernels else []
    return HostCheck("software", Status.OK, ", ".join([*packages, *mpi, *slurm, *kernels]))


def differences(found: Mapping[str, MachineFacts]) -> list[str]:
    """Return a sentence for each package whose version differs between hosts."""
    notes = []
    for name in dict.fromkeys(name for item in found.values() for name in item.packages):
        versions: dict[str, list[str]] = {}
        for host, item in found.items():
            versions.setdefault(item.packages.get(name, "none"), []).append(host)
        if len(versions) > 1:
            places = "; ".join(f"{version} on {', '.join(hosts)}" for version, hosts in versions.items())
            notes.append(f"{name} differs between hosts: {places}")
    return notes


def size(count: int) -> str:
    """Return a number of bytes as text, such as 512 MiB or 251 GiB."""
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if count >= 1 << shift:
            value = count / (1 << shift)
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{count >> 10} KiB"


def family(address: str) -> str:
    """Return the family of an address, `IPv4` or `IPv6`."""
    return "IPv6" if ":" in address else "IPv4"


def gigabits(rate: float) -> str:
    """Return bytes per second as Gbit/s with three digits: 0.478, 9.41, 94.1."""
    return f"{rate * 8 / 1e9:.3g}"


def seconds(value: float) -> str:
    """Return a duration as text with three digits: 1.2 s, 45 ms, 120 us."""
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"
