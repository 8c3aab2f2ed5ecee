"""The hosts that an elastic job may use, with the way to each; they may change while the job runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from distrun.runner.planning.hosts import Host
from distrun.runner.planning.ssh_config import Route

Resolve = Callable[[Sequence[Host]], tuple[list[Host], dict[str, Route]]]
"""Finds which hosts are this machine under some name, and routes to the others."""


class HostList:
    """All hosts that were ever listed. Its methods may be called by any thread."""

    def __init__(self, resolve: Resolve, default_slots: int = 1) -> None:
        """Args: finds the routes; the slots of hosts that are listed without."""
        self._resolve = resolve
        self._default_slots = default_slots
        self._lock = threading.Lock()
        self._hosts: dict[str, Host] = {}
        self._routes: dict[str, Route] = {}
        self._here = ""

    def add(self, hosts: Sequence[Host]) -> dict[str, int]:
        """Note hosts; return the slots by name, in order. This machine keeps the name that it had first.

        Raises:
            UsageError: one of them cannot be understood.
        """
        resolved, routes = self._resolve(hosts)
        return self.add_resolved(resolved, routes)

    def add_resolved(self, hosts: Sequence[Host], routes: Mapping[str, Route]) -> dict[str, int]:
        """Note hosts whose routes are known; return the slots by name, in order."""
        slots: dict[str, int] = {}
        with self._lock:
            for host in hosts:
                name = host.name
                if name not in routes:
                    self._here = name = self._here or name
                else:
                    self._routes[name] = routes[name]
                slots[name] = host.slots or self._default_slots
                self._hosts[name] = replace(host, name=name, slots=slots[name])
        return slots

    def __len__(self) -> int:
        """Return the number of hosts that were ever listed."""
        return len(self._hosts)

    def __contains__(self, name: str) -> bool:
        """Whether a host is listed."""
        return name in self._hosts

    def __getitem__(self, name: str) -> tuple[Host, Route | None]:
        """Return a host, and the route to it; None: it is this machine."""
        with self._lock:
            return self._hosts[name], self._routes.get(name)
