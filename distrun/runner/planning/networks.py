"""Which addresses the hosts of a job reach each other by. Pure: interfaces in, addresses in order of preference out."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping, Sequence

from distrun.errors import UsageError
from distrun.runner.system.machine import Interface


class Networks:
    """The interfaces of all hosts of a job, and which of them lead to the others."""

    def __init__(self, hosts: Mapping[str, Sequence[Interface]], network: str = "") -> None:
        """Args: the interfaces of each host; names of interfaces and subnets, by commas, that may be used, empty = all.

        Raises:
            UsageError: a host has interfaces, and none that may be used.
        """
        self._count = len(hosts)
        addresses = Counter(address for items in hosts.values() for address in {item.address for item in items})
        self._hosts = {}
        for host, items in hosts.items():
            allowed = select(items, network, f"host {host!r}")
            # A docker0 has the same address everywhere, and whoever calls it reaches himself.
            distinct = [item for item in allowed if addresses[item.address] == 1]
            self._hosts[host] = distinct or allowed  # the "hosts" may be accounts of one machine
        self._members = Counter(
            subnet for items in self._hosts.values() for subnet in {_subnet(item) for item in items}
        )

    def of(self, host: str) -> list[Interface]:
        """The interfaces of a host, best first: in a subnet that all hosts have, in one that some have, others; of
        equals, IPv4 first."""
        return sorted(self._hosts[host], key=self._remoteness)

    def is_shared(self, interface: Interface) -> bool:
        """Whether another host is in the same subnet."""
        return self._members[_subnet(interface)] > 1

    def _remoteness(self, interface: Interface) -> tuple[int, bool]:
        members = self._members[_subnet(interface)]
        return (0 if members == self._count else 1 if members > 1 else 2), ":" in interface.address


def select(interfaces: Sequence[Interface], network: str, owner: str) -> list[Interface]:
    """Those that the value of `--network` allows.

    Args:
        interfaces: those there are; when there are none at all, nothing is wrong with `network`.
        network: `eth1`, `10.0.0.0/8` or several of these, by commas; empty = all.
        owner: whose they are, for the error.

    Raises:
        UsageError: there are some, and none is allowed.
    """
    if not network:
        return list(interfaces)
    names, subnets = parse(network)
    allowed = [item for item in interfaces if item.name in names or any(_address(item) in subnet for subnet in subnets)]
    if interfaces and not allowed:
        there = ", ".join(f"{item.name} ({item.address}/{item.prefix})" for item in interfaces)
        raise UsageError(f"--network {network!r} allows no interface of {owner}: give one of {there}, or their subnets")
    return allowed


def parse(network: str) -> tuple[set[str], list[ipaddress.IPv4Network | ipaddress.IPv6Network]]:
    """The value of `--network`: the names of interfaces and the subnets in it.

    Raises:
        UsageError: an entry is neither.
    """
    names: set[str] = set()
    subnets = []
    for entry in network.split(","):
        text = entry.strip()
        try:
            subnets.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            if not text or "/" in text or ":" in text:
                raise UsageError(
                    f"--network {network!r}: {text!r} is neither an interface nor a subnet; allowed are names and "
                    "subnets by commas, as in eth1,10.0.0.0/8"
                ) from None
            names.add(text)
    return names, subnets


def endpoint(address: str, port: int) -> str:
    """`10.0.0.1:4711`, and `[fd00::1]:4711` for IPv6."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _address(interface: Interface) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(interface.address)


def _subnet(interface: Interface) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network((interface.address, interface.prefix), strict=False)
