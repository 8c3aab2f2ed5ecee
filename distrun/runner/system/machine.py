"""What the launcher asks of the machine it runs on: its names, its cores, its GPUs, a free port."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

_MOST_QUESTIONS = 32  # to the name server at a time


class Interface(NamedTuple):
    """An address of a network interface."""

    name: str
    address: str
    prefix: int
    """How many bits of the address are those of its subnet."""


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


def interfaces() -> list[Interface]:
    """The interfaces that are up and that other hosts may know: no loopback, no link-local addresses unless there is
    nothing else. Link-local ones of IPv6 mean nothing without an interface and are left out."""
    import ipaddress

    import psutil

    states = psutil.net_if_stats()
    found: list[Interface] = []
    link_local: list[Interface] = []
    for name, items in psutil.net_if_addrs().items():
        if name not in states or not states[name].isup:
            continue
        for item in items:
            if item.family not in (socket.AF_INET, socket.AF_INET6) or "%" in item.address:
                continue
            address = ipaddress.ip_address(item.address)
            bits = int(ipaddress.ip_address(item.netmask)).bit_count() if item.netmask else address.max_prefixlen
            if not address.is_loopback:
                (link_local if address.is_link_local else found).append(Interface(name, item.address, bits))
    return found or link_local


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


def reserve_port() -> socket.socket:
    """A socket that keeps a TCP port, on all addresses, for another process of the same user: who sets SO_REUSEPORT may
    bind it too, and as this socket does not listen, all calls are his."""
    for family, wildcard in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            keeper = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # a kernel without IPv6
            continue
        try:
            if family == socket.AF_INET6:
                keeper.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            keeper.bind((wildcard, 0))
            return keeper
        except OSError as error:
            keeper.close()
            problem = error
    raise problem


def free_ports(count: int) -> list[int]:
    """Different TCP ports nobody listens on at this moment."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in probes]


def free_port() -> int:
    """A TCP port nobody listens on at this moment."""
    return free_ports(1)[0]
