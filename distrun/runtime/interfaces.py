"""The network interfaces of this machine, and which of them a job may use."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from distrun.errors import UsageError


@dataclass(frozen=True)
class Interface:
    """An address of a network interface."""

    name: str
    address: str
    """Numeric, IPv4 or IPv6."""
    prefix: int
    """How many bits of the address name the subnet."""

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address as one of `ipaddress`."""
        return ipaddress.ip_address(self.address)


def interfaces() -> list[Interface]:
    """The addresses of the interfaces that are up, loopback included, the IPv4 address of an interface before its IPv6 ones.

    IPv6 addresses of the link alone (fe80::) are left out: without the name of an interface they lead nowhere.
    """
    import psutil  # 50 ms, which a job on one host need not spend

    states = psutil.net_if_stats()
    found = []
    for name, entries in psutil.net_if_addrs().items():
        if name not in states or not states[name].isup:
            continue
        for entry in sorted(entries, key=lambda entry: entry.family):
            if entry.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            interface = Interface(name, entry.address.partition("%")[0], _prefix(entry.netmask))
            if not (interface.ip.version == 6 and interface.ip.is_link_local):
                found.append(interface)
    return found


def matching(network: str) -> list[Interface]:
    """The interfaces of this machine that a DISTRUN_NETWORK value allows, in the order of the value.

    Args:
        network: names of interfaces, subnets and addresses, by commas: `eth1`, `10.0.0.0/8`, `eth1,fd00::/8`.

    Raises:
        UsageError: it allows none; the text lists what there is.
    """
    return allowed(network, interfaces())


def allowed(network: str, present: Iterable[Interface]) -> list[Interface]:
    """Those of the `present` interfaces that a DISTRUN_NETWORK value allows.

    Raises:
        UsageError: it allows none; the text lists what there is.
    """
    present = list(present)
    chosen: list[Interface] = []
    for word in filter(None, (part.strip() for part in network.split(","))):
        chosen += [interface for interface in present if interface not in chosen and _fits(word, interface)]
    if not chosen:
        there_is = ", ".join(f"{interface.name} {interface.address}/{interface.prefix}" for interface in present)
        raise UsageError(
            f"the network {network!r} fits no interface of {socket.gethostname()}, which has {there_is or 'none'}: "
            "name an interface or a subnet that every host has (--network, DISTRUN_NETWORK)"
        )
    return chosen


def _fits(word: str, interface: Interface) -> bool:
    if word == interface.name:
        return True
    try:
        subnet = ipaddress.ip_network(word, strict=False)
    except ValueError:
        return False  # the name of an interface that is not here
    return interface.ip in subnet


def _prefix(netmask: str | None) -> int:
    """`255.255.0.0` or `ffff:ffff::` as a number of bits."""
    return int(ipaddress.ip_address(netmask)).bit_count() if netmask else 0
