"""The hosts that an elastic job may use, with the route to each. They may change while the job runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from distrun.runner.planning.hosts import Host
from distrun.runner.planning.ssh_config import Route

Resolve = Callable[[Sequence[Host]], tuple[list[Host], dict[str, Route]]]
"""A function that returns hosts under their names, and routes to those that are not this machine."""


class HostList:
    """All hosts that were ever listed. Its methods may be called by any thread."""

    def __init__(self, resolve: Resolve, default_slots: int = 1) -> None:
        """Args: what finds the routes, and the slots of hosts that are listed without a number."""
        self._resolve = resolve
        self._default_slots = default_slots
        self._lock = threading.Lock()
        self._hosts: dict[str, Host] = {}
        self._routes: dict[str, Route] = {}
        self._here = ""

    def add(self, hosts: Sequence[Host]) -> dict[str, int]:
        """Add hosts; return their slots by name, in order. This machine keeps the name under which it came first.

        Raises:
            UsageError: one of them cannot be understood.
        """
        resolved, routes = self._resolve(hosts)
        return self.add_resolved(resolved, routes)

    def add_resolved(self, hosts: Sequence[Host], routes: Mapping[str, Route]) -> dict[str, int]:
        """Add hosts whose routes are known, and return their slots by name, in order."""
        slots: dict[str, int] = {}
        with self._lock:
            for host in hosts:
                name = host.name
                if name not in routes:
                    self._here = name = self._here or name
                else:
                    self._routes[name] = routes[name]
                slots[name] = host.slots or self._default_slots * host.times
                self._hosts[name] = replace(host, name=name, slots=slots[name])
        return slots

    def __len__(self) -> int:
        """Return the number of hosts that were ever listed."""
        return len(self._hosts)

    def __contains__(self, name: str) -> bool:
        """Whether a host is listed."""
        return name in self._hosts

    def __getitem__(self, name: str) -> tuple[Host, Route | None]:
        """Return a host, and the route to it. None: it is this machine."""
        with self._lock:
            return self._hosts[name], self._routes.get(name)
