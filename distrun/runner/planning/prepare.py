"""Turns a request into a plan that this machine can execute: first checks of the surroundings, then the plan."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distrun.contract.horovod import without_effect
from distrun.contract.settings import TORCH_BACKEND, Settings, unknown
from distrun.errors import UsageError
from distrun.host.endpoints import free_port
from distrun.host.interfaces import parse_network
from distrun.runner.planning import allocation
from distrun.runner.planning.allocation import Allocation
from distrun.runner.planning.checks import check_command, check_gpus, check_program
from distrun.runner.planning.hosts import Host, merge, parse_hostfile
from distrun.runner.planning.plan import LaunchPlan
from distrun.runner.planning.planner import make_plan
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route, SshOptions, SshSettings, read_config
from distrun.runner.planning.variables import servers
from distrun.runner.planning.variables.environ import inherited_variables
from distrun.runner.planning.variables.job import settings
from distrun.runner.system import machine

_DEFAULTS = SshOptions()
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # a variable of torch: any value but 1 turns it off


def prepare(request: LaunchRequest, grace: float, ssh: SshOptions = _DEFAULTS) -> LaunchPlan:
    """Check a request against this machine and plan it.

    Raises:
        UsageError: the request cannot be met. A CommandError if that is because of the command.
    """
    resolved = resolve(request, ssh)
    request, routes = resolved.request, resolved.routes
    if resolved.launcher == "mpirun":
        servers.refuse(request.servers, "--launcher mpirun", "leave it out, or start the ranks by ssh or srun")
        from distrun.runner.planning.mpirun.plan import make_plan as make_mpirun_plan

        plan = make_mpirun_plan(request, launch_context(routes), grace, ssh)
        if not routes:
            check_command(replace(plan.agents[0], command=list(request.command)))
            check_program(request.command, plan.agents[0], request.stdin)
    else:
        plan = replace(make_plan(request, launch_context(routes), grace), launcher=resolved.launcher)
        if plan.size > 1:
            with_ranks = sum(bool(agent.ranks) for agent in plan.agents)
            chosen_settings(request).check_backend(request.nodes or with_ranks)
    if request.network and not request.nodes and len(plan.agents) == 1:
        plan = replace(plan, notes=(*plan.notes, f"--network {request.network} has no effect on one host"))
    return check_plan(request, plan, resolved.notes)


@dataclass(frozen=True)
class Resolved:
    """A request whose hosts are known."""

    request: LaunchRequest
    launcher: str
    """The program that starts ranks on other hosts."""
    routes: dict[str, Route]
    """The routes to the hosts that are not this machine."""
    notes: tuple[str, ...] = ()


def resolve(request: LaunchRequest, ssh: SshOptions) -> Resolved:
    """Find out which hosts `request` means, and how they are reached.

    Raises:
        UsageError: they cannot be reached in the way that the user asks for.
    """
    request = checked(request)
    launcher, allocated = choose_launcher(request)
    notes: tuple[str, ...] = ()
    if allocated is not None and not request.hosts:
        given = tuple(replace(host, slots=request.slots or host.slots) for host in allocated.hosts)
        request = replace(request, hosts=given)
        notes = (f"hosts of {allocated}",)
    if request.server_hosts:
        return _with_server_hosts(request, launcher, ssh, notes)
    hosts, routes = resolve_hosts(request.hosts, launcher, ssh)
    return Resolved(replace(request, hosts=tuple(hosts)), launcher, routes, notes)


def _with_server_hosts(request: LaunchRequest, launcher: str, ssh: SshOptions, notes: tuple[str, ...]) -> Resolved:
    """Return the request with the servers' hosts under the names that the same hosts have for ranks, and all routes."""
    own = [replace(host, slots=0) for host in request.server_hosts]  # 0 adds nothing in `merge`
    hosts, routes = resolve_hosts([*(request.hosts or [Host("localhost")]), *own], launcher, ssh)
    names = {host.name: host for host in hosts}
    here = next((host for host in hosts if host.name not in routes), None)
    found = dict.fromkeys(names.get(host.name, here) for host in own)
    for_ranks = tuple(host for host in hosts if host.slots != 0) if request.hosts else ()
    return Resolved(
        replace(request, hosts=for_ranks, server_hosts=tuple(host for host in found if host is not None)),
        launcher,
        routes,
        notes,
    )


def choose_launcher(request: LaunchRequest) -> tuple[str, Allocation | None]:
    """Return the program that starts ranks on other hosts, and the allocation that this process runs in.

    The program is the requested one, else the one that fits: srun for nodes of this job's allocation, ssh for others.

    Raises:
        UsageError: the launcher that the user asks for cannot be used here.
    """
    is_stated = bool(request.hosts) and "SLURM_JOB_ID" not in os.environ
    allocated = None if request.nodes or is_stated else allocation.current(os.environ)
    in_slurm = allocated is not None and allocated.scheduler == "Slurm"
    ours = () if allocated is None else allocated.hosts
    strangers = {host.name for host in (*request.hosts, *request.server_hosts)} - {host.name for host in ours}
    has_srun = shutil.which("srun") is not None
    if request.mpi_args and request.launcher != "mpirun":
        raise UsageError(f"--mpi-args {request.mpi_args!r} needs --launcher mpirun: no other launcher reads it")
    if request.launcher == "srun" and not (in_slurm and has_srun):
        lack = "a Slurm allocation: start distrun within salloc or sbatch" if has_srun else "srun: put it on PATH"
        raise UsageError(f"--launcher srun needs {lack}, or use --launcher ssh")
    if request.launcher == "srun" and strangers:
        raise UsageError(
            f"--launcher srun does not reach {', '.join(sorted(strangers))}: allowed are the hosts of {allocated}"
        )
    if request.launcher is not None:
        return request.launcher, allocated
    return ("srun" if in_slurm and has_srun and not strangers else "ssh"), allocated


def resolve_hosts(hosts: Sequence[Host], launcher: str, ssh: SshOptions) -> tuple[list[Host], dict[str, Route]]:
    """Return all hosts, with one name for this machine, and the routes to the others.

    Raises:
        UsageError: a host is listed with two accounts.
    """
    if launcher != "srun":
        return _resolve_hosts(hosts, ssh)
    others = [host.name for host in hosts if not allocation.is_own_node(os.environ, host.name)]
    return list(hosts), {name: Route(name, name) for name in others}  # srun needs only the names


def check_plan(
    request: LaunchRequest, plan: LaunchPlan, notes: tuple[str, ...], *, needs_script: bool = True
) -> LaunchPlan:
    """Return a plan with further notes and with warnings, if this machine can execute its part.

    Without `needs_script`, its script need not be here: hosts are found later, or its name is not known yet.

    Raises:
        UsageError: it cannot. A CommandError if that is because of the command.
    """
    environ = {name: value for agent in plan.agents for name, value in agent.environ.items()}
    # A variable that looks like a setting of distrun but is not one. With mpirun, rank 0 warns.
    warnings = () if plan.by_mpirun else (*unknown(environ), *without_effect(environ))
    plan = replace(plan, notes=(*notes, *plan.notes), warnings=warnings)
    for agent in plan.agents:
        if not agent.remote:
            if request.wdir is not None and not os.path.isdir(request.wdir):
                raise UsageError(f"--wdir {request.wdir!r} is not a directory: give one that exists on every host")
            check_command(agent)
            check_gpus([host for host in request.hosts if host.name == agent.host])
        if needs_script and not plan.by_mpirun:
            check_program(agent.command, agent, request.stdin)
    return plan


def checked(request: LaunchRequest) -> LaunchRequest:
    """Return the request completed from this process's directory and variables.

    Raises:
        UsageError: a setting or the network is not valid.
    """
    if request.network:
        parse_network(request.network)
    environ = _ranks_environ(request)
    chosen = Settings.of(environ)
    if chosen.torch_backend and environ.get(_AUTOLOAD, "1") != "1":
        raise UsageError(
            f"{_AUTOLOAD}={environ[_AUTOLOAD]!r} keeps torch from loading distrun's backend, and --torch-backend "
            f"({TORCH_BACKEND}=1) needs it: unset it, or give -x {_AUTOLOAD}=1"
        )
    if chosen.horovod:
        request = replace(request, horovod=True)
    return request if request.wdir is None else replace(request, wdir=os.path.abspath(request.wdir))


def chosen_settings(request: LaunchRequest) -> Settings:
    """Return the settings that a rank on this machine will find.

    Raises:
        UsageError: a setting has an impossible value, which every rank would refuse by itself.
    """
    return Settings.of(_ranks_environ(request))


def _ranks_environ(request: LaunchRequest) -> dict[str, str]:
    """Return the variables that ranks on this machine will find, as far as the user chooses them."""
    exported = dict(spec.split("=", 1) for spec in request.exports if "=" in spec)
    return {**inherited_variables(os.environ), **settings(request), **exported}


def read_hostfile(path: str) -> list[Host]:
    """Return the hosts of a host file.

    Raises:
        UsageError: the file cannot be read or understood.
    """
    try:
        return parse_hostfile(Path(path).read_text(), f"hostfile {path!r}")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"hostfile {path!r} cannot be read: {reason}; give a file you may read") from None


def launch_context(routes: Mapping[str, Route]) -> LaunchContext:
    direct = [route.hostname for route in routes.values() if route.jump is None and route.proxy_command is None]
    return LaunchContext(
        environ=dict(os.environ),
        cwd=os.getcwd(),
        job=secrets.token_hex(16),
        key=secrets.token_hex(32),
        master_port=free_port(),
        cores=machine.count_cores(),
        slots=machine.default_slots(),
        routes=routes,
        address=machine.address_towards(direct[0]) if direct else socket.gethostname(),
    )


def _resolve_hosts(hosts: Sequence[Host], ssh: SshOptions) -> tuple[list[Host], dict[str, Route]]:
    """Return all hosts, and the routes to the hosts that are not this machine.

    All names of this machine are replaced by the first one listed, so that its ranks share one numbering of local
    ranks. Another account on this machine is reached like another machine.
    """
    others = [host for host in hosts if not (machine.is_own_name(host.name) and _is_own_account(host))]
    if not others:
        return merge(replace(host, name=hosts[0].name, user=None) for host in hosts), {}
    home = os.path.expanduser("~")
    ssh_settings = SshSettings(read_config(home), ssh, getpass.getuser(), home)
    routes = {host: ssh_settings.route(host) for host in others}
    ours = {*hosts} - {*others} | _aliases_of_us(routes)
    first = next((host.name for host in hosts if host in ours), "")
    merged = merge(replace(host, name=first, user=None) if host in ours else host for host in hosts)
    names = Counter(host.name for host in merged)
    for host in merged:
        if names[host.name] > 1:
            raise UsageError(f"host {host.name!r} is listed with two accounts: give it with one of them")
    return merged, {host.name: route for host, route in routes.items() if host not in ours}


def _aliases_of_us(routes: Mapping[Host, Route]) -> set[Host]:
    """Return the hosts that are this machine under another name.

    A name that SSH is configured to reach through a jump host or proxy does not count, and neither does an alias of
    localhost, which leads to a container or through a tunnel.
    """
    direct = {
        host: route.hostname
        for host, route in routes.items()
        if route.jump is None and route.proxy_command is None and _is_own_account(host)
        if route.hostname == host.name or not machine.is_own_name(route.hostname)
    }
    local = machine.local_names(set(direct.values()))
    return {host for host, hostname in direct.items() if hostname in local}


def _is_own_account(host: Host) -> bool:
    return host.user is None or host.user == getpass.getuser()
