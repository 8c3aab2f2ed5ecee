"""Checks the user's request for an elastic job, and makes a plan that this machine can execute."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from distrun.contract.settings import Settings
from distrun.errors import UsageError
from distrun.host.endpoints import free_port
from distrun.host.numerals import MOST_RANKS, MOST_SLOTS, whole_number
from distrun.host.ranks import count
from distrun.runner.decisions.elastic.options import UNLIMITED, ElasticOptions
from distrun.runner.elastic.discovery import Discovery, HostSource
from distrun.runner.elastic.host_list import HostList
from distrun.runner.planning import python_command
from distrun.runner.planning.elastic import ElasticPlanner
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.placement import place, with_slots
from distrun.runner.planning.plan import LaunchPlan, describe
from distrun.runner.planning.planner import make_plan
from distrun.runner.planning.prepare import (
    check_plan,
    checked,
    choose_launcher,
    chosen_settings,
    launch_context,
    resolve,
    resolve_hosts,
)
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import SshOptions

_HOROVODS_TIMEOUT = "HOROVOD_ELASTIC_TIMEOUT"


@dataclass(frozen=True)
class ElasticRequest:
    """The user's options for an elastic job, besides those for every job. None = not given."""

    min_np: int | None = None
    max_np: int | None = None
    hosts_from: str | None = None
    """The script that lists the hosts."""
    spares: int = 0
    max_restarts: int | None = None
    restart_window: float | None = None
    reset_limit: int | None = None
    """Horovod's option: the number of restarts over the whole job."""
    elastic_timeout: float | None = None
    cooldown: tuple[float, float] | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ElasticRequest:
        """Return the request that the options of the command line make.

        Raises:
            UsageError: a value is not allowed.
        """
        names = {field.name for field in fields(cls)} & options.keys()
        given = {name: value for name in names if (value := options[name]) is not None}
        return cls(**{**given, "cooldown": _cooldown(options["cooldown"])})


def _cooldown(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    first, _, most = text.partition(",")
    try:
        shortest, longest = float(first), float(most or max(float(first), 3600.0))
    except ValueError:
        shortest = longest = math.nan
    if not 0 < shortest <= longest < math.inf:
        raise UsageError(f"--cooldown {text!r} is no pair of seconds that rise: give S or S,MOST, as in 10,3600")
    return shortest, longest


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


def prepare_elastic(request: LaunchRequest, elastic: ElasticRequest, grace: float, ssh: SshOptions) -> ElasticPlan:
    """Check a request against this machine and plan it.

    Raises:
        UsageError: the request cannot be met.
    """
    settings = chosen_settings(request)
    check_elastic(request, settings)
    if settings.horovod and elastic.elastic_timeout is None:
        elastic = replace(elastic, elastic_timeout=_horovods_timeout())
    if elastic.hosts_from is not None:
        return _with_script(request, elastic, elastic.hosts_from, settings, ssh)
    resolved = resolve(request, ssh)
    request = resolved.request
    context = launch_context(resolved.routes)
    hosts = _hosts(request, context)
    total = sum(host.slots or 0 for host in hosts)
    np = request.np or total
    options = elastic_limits(elastic, np, np, settings)
    listed = HostList(lambda more: resolve_hosts(more, resolved.launcher, ssh))
    plan = plan_hosts(request, hosts, np, options, listed, context, grace, resolved.launcher)
    return replace(plan, first=replace(plan.first, notes=(*resolved.notes, *plan.first.notes)))


def plan_hosts(
    request: LaunchRequest,
    hosts: Sequence[Host],
    np: int,
    options: ElasticOptions,
    listed: HostList,
    context: LaunchContext,
    grace: float,
    launcher: str,
) -> ElasticPlan:
    """Return the plan of an elastic job whose first hosts are known.

    Raises:
        UsageError: the request cannot be met.
    """
    first = replace(make_plan(replace(request, np=np), context, grace), launcher=launcher)
    first, options = without_vain_spares(first, options, request, context)
    first = replace(check_plan(request, first, ()), elastic_command=request.command)
    planner = ElasticPlanner(request, context, options, free_port)
    return ElasticPlan(first, planner, options, listed, listed.add_resolved(hosts, context.routes))


def _with_script(
    request: LaunchRequest, elastic: ElasticRequest, script: str, settings: Settings, ssh: SshOptions
) -> ElasticPlan:
    """Plan a job whose hosts are listed by a script, so that they are unknown until the job runs."""
    if request.hosts:
        hosts = ",".join(map(str, request.hosts))
        raise UsageError(f"--hosts-from {script!r} and the hosts {hosts} exclude each other: give one of them")
    np = request.np or elastic.min_np
    if np is None:
        raise UsageError(f"--hosts-from {script!r} does not say how many ranks to start with: give -np or --min-np")
    request = replace(checked(request), np=np)
    launcher, _ = choose_launcher(request)
    context = launch_context({})
    options = replace(elastic_limits(elastic, np, UNLIMITED, settings), discovers=True)
    if launcher != "srun" and request.slots is None:
        request = replace(request, slots=1)
    few = min(np, MOST_SLOTS)
    checks = make_plan(replace(request, hosts=(Host("localhost", few),), np=few, share_gpus=True), context, 0.0)
    program = script if os.path.isfile(script) else script.split()[0] if script.strip() else ""
    if not program or (os.sep in program and not os.access(program, os.X_OK)):
        raise UsageError(f"--hosts-from {script!r} cannot be executed: give a program, or the command line of one")
    warnings = check_plan(request, checks, (), needs_script=False).warnings
    command = request.command
    first = LaunchPlan(context.job, np, (), warnings=warnings, launcher=launcher, elastic_command=command)
    first, options = without_vain_spares(first, options, request, context)
    listed = HostList(lambda more: resolve_hosts(more, launcher, ssh), request.slots or 1)
    planner = ElasticPlanner(request, context, options, free_port)
    discovery = Discovery(script, listed)
    discovery.check()  # one that fails from the start would leave the job waiting for hosts
    return ElasticPlan(first, planner, options, listed, {}, discovery)


def check_elastic(request: LaunchRequest, settings: Settings) -> None:
    """Refuse options that do not go with a job that changes while it runs.

    Raises:
        UsageError: the request has such an option.
    """
    remedies = {
        "DISTRUN_BACKEND='mpi'": (settings.backend == "mpi", "MPI ends all ranks when one is gone: use auto"),
        "--launcher mpirun": (request.launcher == "mpirun", "MPI ends all ranks when one is gone: leave it out"),
        f"--ps {request.ps}": (bool(request.ps), "parameter servers have no state that others could take over"),
        f"--stdin {request.stdin}": (request.stdin is not None, "the rank may be another process later: leave it out"),
        f"--map-by {request.map_by}": (request.map_by != "slot", "ranks keep their places: leave it out"),
    }
    for said, (is_asked_for, why) in remedies.items():
        if is_asked_for:
            raise UsageError(f"{said} does not go with an elastic job: {why}")


def _horovods_timeout() -> float | None:
    """Return the seconds of HOROVOD_ELASTIC_TIMEOUT, None if it is not set."""
    text = os.environ.get(_HOROVODS_TIMEOUT)
    if not text:
        return None
    seconds = whole_number(text, most=sys.maxsize)
    if seconds is None:
        raise UsageError(f"{_HOROVODS_TIMEOUT}={text!r} is no number of seconds >= 1: correct it, or unset it")
    return float(seconds)


def _hosts(request: LaunchRequest, context: LaunchContext) -> list[Host]:
    """Return the hosts, or this machine, with their slots, which are enough for the ranks at the start."""
    given = with_slots(request.hosts, request.slots, request.ranks_per_host, request.oversubscribe)
    bare, cores = (1, None) if request.hosts else (context.slots, context.cores)
    found = place(given, request.np, bare, oversubscribe=request.oversubscribe, cores=cores)
    placed = {host.name: ranks for host, ranks in found}
    return [replace(host, slots=max(host.slots or bare * host.times, placed.get(host.name, 0))) for host in given]


def without_vain_spares(
    plan: LaunchPlan, options: ElasticOptions, request: LaunchRequest, context: LaunchContext
) -> tuple[LaunchPlan, ElasticOptions]:
    """Return `plan` and `options`, without spares and with a note if the command is not a Python program."""
    wdir = request.wdir or context.cwd
    if not options.spares or python_command.split(request.command, context.environ.get("PATH"), wdir) is not None:
        return plan, options
    why = f"there are no spares of {request.command[0]!r}, which is no Python program: ranks are started when needed"
    return replace(plan, notes=(*plan.notes, why)), replace(options, spares=0)


def elastic_limits(elastic: ElasticRequest, np: int, most: int, settings: Settings) -> ElasticOptions:
    """Return the limits.

    Args:
        elastic: what the user asks for.
        np: the number of ranks at first.
        most: the most ranks if the user does not limit them.
        settings: the settings of the job. In Horovod's mode planned changes count for `reset_limit`, too.

    Raises:
        UsageError: the limits contradict each other.
    """
    if np > MOST_RANKS:
        raise UsageError(f"-np {np} is not a number of ranks: give 1 to {MOST_RANKS}")
    min_np, max_np = elastic.min_np or np, elastic.max_np or max(np, most)
    if not 1 <= min_np <= np <= max_np:
        raise UsageError(
            f"-np {np} is not between --min-np {min_np} and --max-np {max_np}: give numbers that rise in this order"
        )
    default = ElasticOptions(np, min_np, max_np, elastic.spares, keepalive=settings.keepalive or None)
    restarts, window = elastic.max_restarts, elastic.restart_window or default.restart_window
    if elastic.reset_limit is not None:
        restarts, window = elastic.reset_limit, None
    return replace(
        default,
        max_restarts=default.max_restarts if restarts is None else restarts,
        counts_changes=settings.horovod and elastic.reset_limit is not None,
        gives_up_early=restarts is None,  # if it is given, the user wants that many tries
        restart_window=window,
        elastic_timeout=elastic.elastic_timeout or default.elastic_timeout,
        cooldown=elastic.cooldown or default.cooldown,
    )
