"""What the launcher asks of the machine it runs on: its names, its cores, its GPUs, a free port."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_MOST_QUESTIONS = 32  # to the name server at a time


def local_names(names: Collection[str]) -> set[str]:
    """Those of the names and addresses that mean this machine; a slow name server is asked for several at a time."""
    with ThreadPoolExecutor(min(len(names), _MOST_QUESTIONS) or 1) as pool:
        return {name for name, is_ours in zip(names, pool.map(is_local, names), strict=True) if is_ours}


def is_own_name(name: str) -> bool:
    """Whether a name means this machine without asking a name server."""
    return name in ("localhost", "::1", socket.gethostname()) or name.startswith("127.")


def is_local(name: str) -> bool:
    """Whether a host's name or address means this machine."""
    if is_own_name(name):
        return True
    try:
        addresses = {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(name, None)}
    except OSError:
        return False
    return not addresses.isdisjoint(_addresses())


def _addresses() -> set[str]:
    import psutil  # costs 50 ms, and names that need it are rare on one machine

    return {item.address.partition("%")[0] for items in psutil.net_if_addrs().values() for item in items}


def address_towards(hostname: str) -> str:
    """The address of this machine on the route to a host, which that host can reach it by; no packet is sent.

    Without such a route, this machine's name.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(hostname, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def count_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0))


def count_gpus(devices: str = "/dev", driver: str = "/proc/driver/nvidia/gpus") -> int:
    """The NVIDIA GPUs this process may use, found without starting a process or loading a library."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return sum(bool(entry.strip()) and entry.strip() != "-1" for entry in chosen.split(","))
    try:
        nodes = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in os.listdir(devices))
        # A container may see all GPUs of its host in /proc and only its own in /dev.
        return min(nodes, len(list(Path(driver).iterdir())))
    except OSError:
        return 0


def default_slots() -> int:
    """Ranks this machine takes when nobody says: one per GPU, else one per core."""
    return count_gpus() or count_cores()


def free_port() -> int:
    """A TCP port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
