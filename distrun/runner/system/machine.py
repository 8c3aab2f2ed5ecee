"""The machine that this process runs on: its names, its address as another host reaches it, its cores and slots."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection

from distrun.host.gpus import visible_gpus
from distrun.host.identity import boot_id
from distrun.host.interfaces import without_zone
from distrun.runner.system.fan_out import call_for_each

_MAX_QUERIES = 32  # to the name server in parallel


def local_names(names: Collection[str]) -> set[str]:
    """Return the names and addresses in `names` that mean this machine. They are looked up in parallel."""
    asked = list(names)
    answers = call_for_each(is_local, asked, "resolve", _MAX_QUERIES)
    return {name for name, is_ours in zip(asked, answers, strict=True) if is_ours}


def is_own_name(name: str) -> bool:
    """Whether a name means this machine without asking a name server."""
    return name in ("localhost", "::1", socket.gethostname()) or name.startswith("127.")


def is_local(name: str) -> bool:
    """Whether a host's name or address means this machine."""
    if is_own_name(name):
        return True
    try:
        addresses = {without_zone(str(info[4][0])) for info in socket.getaddrinfo(name, None)}
    except OSError:
        return False
    return not addresses.isdisjoint(_addresses())


def _addresses() -> set[str]:
    import psutil  # costs 50 ms, and names that need it are rare on one machine

    return {without_zone(item.address) for items in psutil.net_if_addrs().values() for item in items}


def identity() -> str:
    """Return a text that is the same for all names of a host and different for other hosts, or "" if unknown.

    It is valid for this boot of the kernel. Containers on a machine count as separate hosts, by their namespaces for
    network and processes, or at least by their names. So do accounts, as they do not share memory.
    """
    try:
        boot = boot_id()
        namespaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid")]
    except OSError:
        return ""
    return " ".join([boot, *namespaces, str(os.getuid()), socket.gethostname()])


def address_towards(hostname: str) -> str:
    """Return this machine's address on the route to `hostname`, which that host can reach. No packet is sent.

    Without a route, this machine's name is returned.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(hostname, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def default_slots() -> int:
    """Return the default number of ranks on this machine: one per GPU, or without GPUs, one per core."""
    return visible_gpus(os.environ) or count_cores()
