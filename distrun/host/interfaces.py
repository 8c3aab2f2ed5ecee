"""The network interfaces of this machine, and which of them a job may use."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import NamedTuple

from distrun.errors import UsageError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Subnet = ipaddress.IPv4Network | ipaddress.IPv6Network


class Interface(NamedTuple):
    """An address of a network interface. (A tuple, since agents send it to the launcher as JSON.)"""

    name: str
    address: str
    """The address in digits, IPv4 or IPv6."""
    prefix: int
    """The number of bits of the address that name the subnet."""

    @property
    def ip(self) -> Address:
        """The address as an object of `ipaddress`."""
        return ipaddress.ip_address(self.address)

    @property
    def subnet(self) -> Subnet:
        """The subnet that the address belongs to."""
        return ipaddress.ip_network((self.address, self.prefix), strict=False)

    def __str__(self) -> str:
        return f"{self.name} ({self.address}/{self.prefix})"


def own_interfaces(used: str = "") -> list[Interface]:
    """Return the interfaces of this machine that are up, by address, loopback included; of each interface, IPv4 before
    IPv6. Those without carrier come last: they may have it again in a moment, as after a cut.

    IPv6 addresses of the link alone (fe80::) are left out: without the name of an interface they lead nowhere. An
    address without a netmask, as tunnels have, is a subnet of its own.

    Args:
        used: an address that counts although its interface is down, since somebody has come by it.
    """
    import psutil

    states = psutil.net_if_stats()
    found: dict[str, list[Interface]] = {"carrier": [], "up": [], "down": []}
    for name, entries in psutil.net_if_addrs().items():
        if name not in states:
            continue
        # psutil's isup is IFF_RUNNING, which needs a carrier; flags have been there since psutil 5.9.3.
        is_up = "up" in getattr(states[name], "flags", "").split(",")
        state = "carrier" if states[name].isup else "up" if is_up else "down"
        for entry in sorted(entries, key=lambda entry: entry.family):
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                interface = Interface(name, without_zone(entry.address), _prefix(entry.address, entry.netmask))
                if not (interface.ip.version == 6 and interface.ip.is_link_local):
                    found[state].append(interface)
    return [*found["carrier"], *found["up"], *(item for item in found["down"] if item.address == used)]


def reachable(interfaces: Sequence[Interface]) -> list[Interface]:
    """Return those of the interfaces that other hosts can reach.

    Loopback is never among them, link-local addresses (169.254.x.y) only if there is nothing else.
    """
    outside = [interface for interface in interfaces if not interface.ip.is_loopback]
    return [interface for interface in outside if not interface.ip.is_link_local] or outside


def matching(interfaces: Sequence[Interface], network: str, owner: str) -> list[Interface]:
    """Return those of the interfaces that a value of `--network` allows, in the order of the value.

    Args:
        interfaces: the interfaces there are; where there are none at all, nothing is wrong with `network`.
        network: names of interfaces, subnets and addresses, separated by commas: `eth1`, `10.0.0.0/8`,
            `eth1,fd00::/8`; empty allows all.
        owner: whose they are, for the error: `host 'alpha'`.

    Raises:
        UsageError: there are some and none is allowed, or an entry of `network` is neither an interface nor a subnet.
    """
    if not network:
        return list(interfaces)
    chosen: list[Interface] = []
    for entry in parse_network(network):
        chosen += [interface for interface in interfaces if interface not in chosen and _fits(interface, entry)]
    if interfaces and not chosen:
        there = ", ".join(map(str, interfaces))
        raise UsageError(
            f"--network {network!r} allows no interface of {owner}: give one of {there}, or their subnets "
            "(by --network or DISTRUN_NETWORK)"
        )
    return chosen


def further_networks(allowed: Sequence[Interface], network: str, address: str) -> list[Interface]:
    """Return the interfaces beside that of an address over which traffic may be spread: those that the user has named.

    Networks that hosts merely seem to share are not used: a bridge of containers has the same subnet on every host, and
    leads to no other.

    Args:
        allowed: the interfaces that `network` allows.
        network: a value of `--network`, which must list several for any to be used.
        address: the address that is used in any case.

    Returns:
        One address of each interface.
    """
    if "," not in network or is_loopback(address):
        return []
    used = {interface.name for interface in allowed if interface.address == address}
    first = {interface.name: interface for interface in reversed(allowed)}
    return [interface for name, interface in reversed(first.items()) if name not in used and used]


def parse_network(network: str, source: str = "--network ") -> list[str | Subnet]:
    """Return the entries of a value of `--network`: names of interfaces, and subnets.

    Args:
        network: the value.
        source: how an error introduces it: the option, or the variable that it is the value of.

    Raises:
        UsageError: an entry is neither.
    """
    entries: list[str | Subnet] = []
    for entry in network.split(","):
        text = entry.strip()
        try:
            entries.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            if not text or "/" in text or ":" in text:
                raise UsageError(
                    f"{source}{network!r}: {text!r} is neither an interface nor a subnet; allowed are names and "
                    "subnets, separated by commas, as in eth1,10.0.0.0/8"
                ) from None
            entries.append(text)
    return entries


def is_loopback(address: str) -> bool:
    """Whether an address in digits can be reached from its own machine only."""
    return ipaddress.ip_address(without_zone(address)).is_loopback


def is_numeric(name: str) -> bool:
    """Whether the name of a host is an address in digits."""
    try:
        ipaddress.ip_address(without_zone(name))
    except ValueError:
        return False
    return True


def addresses_on_own_host(name: str) -> list[str]:
    """Return the addresses that a name means on the host that it is the name of. Raises OSError for an unknown name.

    Debian's /etc/hosts gives a host's own name as 127.0.1.1, which no other host can reach; all addresses are meant
    then.
    """
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    is_name = name != "localhost" and not is_numeric(name)
    if is_name and all(map(is_loopback, found)):
        return list(dict.fromkeys([interface.address for interface in own_interfaces()] + found))
    return found


def without_zone(address: str) -> str:
    """Return an address without the interface that IPv6 may name in it: `fe80::1` of `fe80::1%eth0`."""
    return address.partition("%")[0]


def _fits(interface: Interface, entry: str | Subnet) -> bool:
    return interface.name == entry if isinstance(entry, str) else interface.ip in entry


def _prefix(address: str, netmask: str | None) -> int:
    """Return a netmask, `255.255.0.0` or `ffff:ffff::`, as a number of bits."""
    if not netmask:
        return ipaddress.ip_address(without_zone(address)).max_prefixlen
    return int(ipaddress.ip_address(netmask)).bit_count()
