"""The network interfaces of this machine, and the selection of those that a job may use."""

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
    """The numeric address, IPv4 or IPv6."""
    prefix: int
    """The prefix length of the subnet, in bits."""

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
    """Return the addresses of this machine's interfaces that are up, including loopback, IPv4 before IPv6 for each.

    Interfaces without a carrier are last: they may have it again in a moment, for example when a cable is plugged in
    again. Link-local IPv6 addresses (fe80::) are left out: they cannot be used without the name of an interface. An
    address without a netmask, as tunnels have, is its own subnet.

    Args:
        used: an address to include even if its interface is down, since a connection has used it.
    """
    import psutil

    states = psutil.net_if_stats()
    found: dict[str, list[Interface]] = {"carrier": [], "up": [], "down": []}
    for name, entries in psutil.net_if_addrs().items():
        if name not in states:
            continue
        # psutil's `isup` is IFF_RUNNING, which needs a carrier. `flags` exists since psutil 5.9.3.
        is_up = "up" in getattr(states[name], "flags", "").split(",")
        state = "carrier" if states[name].isup else "up" if is_up else "down"
        for entry in sorted(entries, key=lambda entry: entry.family):
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                interface = Interface(name, without_zone(entry.address), _prefix(entry.address, entry.netmask))
                if not (interface.ip.version == 6 and interface.ip.is_link_local):
                    found[state].append(interface)
    return [*found["carrier"], *found["up"], *(item for item in found["down"] if item.address == used)]


def reachable(interfaces: Sequence[Interface]) -> list[Interface]:
    """Return those `interfaces` that other hosts can reach.

    Loopback is never included, and link-local addresses (169.254.x.y) only if there are no others.
    """
    outside = [interface for interface in interfaces if not interface.ip.is_loopback]
    return [interface for interface in outside if not interface.ip.is_link_local] or outside


def matching(interfaces: Sequence[Interface], network: str, owner: str) -> list[Interface]:
    """Return those `interfaces` that a value of `--network` allows, in the order of the value.

    Args:
        interfaces: all interfaces. If there are none, the result is empty, without an error.
        network: names of interfaces, subnets and addresses, separated by commas: `eth1`, `10.0.0.0/8`, `eth1,fd00::/8`.
            "" allows all.
        owner: the owner of the interfaces, for the error: `host 'alpha'`.

    Raises:
        UsageError: none of the interfaces is allowed, or an entry of `network` is neither an interface nor a subnet.
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
    """Return the interfaces named by the user, except the one with `address`, to spread traffic over.

    Networks that the user has not named are not used, even if hosts seem to share them: a container bridge has the same
    subnet on every host, and does not lead to other hosts.

    Args:
        allowed: the interfaces that `network` allows.
        network: a value of `--network`. It must have several entries, otherwise the result is empty.
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
        source: the option or the variable with this value, for the error.

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
    """Return whether the numeric `address` can be reached from its own machine only."""
    return ipaddress.ip_address(without_zone(address)).is_loopback


def is_numeric(name: str) -> bool:
    """Return whether the host `name` is a numeric address."""
    try:
        ipaddress.ip_address(without_zone(name))
    except ValueError:
        return False
    return True


def addresses_on_own_host(name: str) -> list[str]:
    """Return the addresses of `name`, the name or an address of this host. Raises OSError for an unknown name.

    Debian's /etc/hosts maps a host's own name to 127.0.1.1, which no other host can reach. In this case, the result has
    all addresses of the host.
    """
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    is_name = name != "localhost" and not is_numeric(name)
    if is_name and all(map(is_loopback, found)):
        return list(dict.fromkeys([interface.address for interface in own_interfaces()] + found))
    return found


def without_zone(address: str) -> str:
    """Return `address` without an IPv6 zone: `fe80::1` for `fe80::1%eth0`."""
    return address.partition("%")[0]


def _fits(interface: Interface, entry: str | Subnet) -> bool:
    return interface.name == entry if isinstance(entry, str) else interface.ip in entry


def _prefix(address: str, netmask: str | None) -> int:
    """Return the prefix length of `netmask`, such as `255.255.0.0` or `ffff:ffff::`. Without one, the full length."""
    if not netmask:
        return ipaddress.ip_address(without_zone(address)).max_prefixlen
    return int(ipaddress.ip_address(netmask)).bit_count()
