"""The plan of an elastic job, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distrun.runner.decisions.elastic.options import UNLIMITED, ElasticOptions
from distrun.runner.elastic.discovery import HostSource
from distrun.runner.elastic.host_list import HostList
from distrun.runner.planning.elastic import ElasticPlanner
from distrun.runner.planning.placement import count
from distrun.runner.planning.plan import LaunchPlan, describe


@dataclass(frozen=True)
class ElasticPlan:
    """An elastic job as it is started."""

    first: LaunchPlan
    """The first generation as far as it is known. Only its name, size, notes and launcher are used."""
    planner: ElasticPlanner
    options: ElasticOptions
    hosts: HostList
    slots: dict[str, int]
    """host -> slots, of the hosts that may be used at the start"""
    discovery: HostSource | None = None
    """The source of hosts that changes them. None: they stay as they are."""

    def describe(self, inherited: Mapping[str, str]) -> str:
        """Return the plan as text, without secrets. Variables that are as in `inherited` are left out.

        Raises:
            UsageError: the script that lists the hosts fails.
        """
        limits = self.options
        most = "" if limits.max_np == UNLIMITED else f" to {limits.max_np}"
        size = f"{count(limits.np, 'rank')}, from {limits.min_np}{most} later on"
        within = "" if limits.restart_window is None else f" within {limits.restart_window:g} s"
        failures, spares = count(limits.max_restarts, "failure"), count(limits.spares, "spare")
        lines = [f"elastic: {size}; {failures}{within}; {spares} per host"]
        if self.discovery is not None:
            lines.append(f"hosts now: {','.join(map(str, self.discovery.list_hosts())) or 'none'}")
        return "\n".join([describe(self.first, inherited), *lines])
