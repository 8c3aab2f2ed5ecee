"""The addresses that the hosts of a job reach each other by: orders each host's interfaces by preference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from distrun.host.interfaces import Interface, matching


class Networks:
    """The interfaces of all hosts of a job, and which of them lead to the others."""

    def __init__(self, hosts: Mapping[str, Sequence[Interface]], network: str = "") -> None:
        """
        Args:
            hosts: the interfaces of each host.
            network: the value of `--network`. Empty allows all.

        Raises:
            UsageError: a host has interfaces, but none that `network` allows.
        """
        self._count = len(hosts)
        addresses = Counter(address for items in hosts.values() for address in {item.address for item in items})
        self._hosts = {}
        for host, items in hosts.items():
            allowed = matching(items, network, f"host {host!r}")
            # A docker0 has the same address on every host: a connection to it would lead to the connecting host itself.
            distinct = [item for item in allowed if addresses[item.address] == 1]
            # If no address is distinct, the "hosts" may be accounts of one machine.
            self._hosts[host] = distinct or allowed
        self._members = Counter(subnet for items in self._hosts.values() for subnet in {item.subnet for item in items})

    def of(self, host: str) -> list[Interface]:
        """Return the interfaces of a host, the best first.

        Interfaces in a subnet that all hosts have come first, then interfaces in a subnet that some other host has,
        then the others. Among equals, IPv4 comes first.
        """
        return sorted(self._hosts[host], key=self._remoteness)

    def is_shared(self, interface: Interface) -> bool:
        """Whether another host has an interface in the same subnet."""
        return self._members[interface.subnet] > 1

    def _remoteness(self, interface: Interface) -> tuple[int, bool]:
        members = self._members[interface.subnet]
        return (0 if members == self._count else 1 if members > 1 else 2), ":" in interface.address
