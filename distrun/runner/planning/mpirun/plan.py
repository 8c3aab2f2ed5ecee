"""The plan of a job whose ranks mpirun starts: its only rank is mpirun."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence

from distrun.contract import horovod
from distrun.errors import UsageError
from distrun.host.interfaces import parse_network
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.mpirun.command_line import MpirunOptions, as_rank, command_line
from distrun.runner.planning.mpirun.program import MpiImplementation, find
from distrun.runner.planning.placement import spread
from distrun.runner.planning.plan import AgentPlan, LaunchPlan, RankPlan
from distrun.runner.planning.planner import master_address, placed_ranks
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import SshOptions
from distrun.runner.planning.variables.environ import (
    forwarded_variables,
    inherited_variables,
    requested_variables,
    search_path,
    thread_variables,
)
from distrun.runner.planning.variables.job import settings

_FROM_HERE = ("OMP_NUM_THREADS", "PYTHONUNBUFFERED", "VIRTUAL_ENV")  # for ranks on other hosts, where set
_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def make_plan(request: LaunchRequest, context: LaunchContext, grace: float, ssh: SshOptions) -> LaunchPlan:
    """Return the plan of a job that the mpirun on PATH starts.

    Raises:
        UsageError: mpirun is missing, or cannot do what is requested.
    """
    _refuse(request, ssh)
    placed, notes = placed_ranks(request, context)
    environ, exports, more = _environment(request, context, placed)
    notes += more
    path = context.environ.get("PATH", os.defpath)
    program, mpi = find(f"{path}:{search_path(path)}")  # the user's own first, the one beside this Python last
    options = MpirunOptions(
        as_rank(mpi, request.command, [count for _, count in placed]),
        [(host.name, count) for host, count in placed],
        request.wdir or context.cwd,
        exports,
        not any(host.name in context.routes for host, _ in placed),
        context.address,
        request.tag_output,
        None if request.output_dir is None else os.path.abspath(request.output_dir),
        request.network or "",
        ssh.arguments,
        os.geteuid() == 0,
        request.bind_to,
        request.report_bindings,
        ssh.keepalive,
        _split(request.mpi_args or ""),
    )
    if options.output_dir is not None and mpi is MpiImplementation.OPENMPI_5:
        notes.append(f"Open MPI 5 writes what the ranks print below {options.output_dir}, and shows none of it")
    if options.as_root and not mpi.is_hydra:
        environ |= dict.fromkeys(_AS_ROOT, "1")
    rank = RankPlan(0, 0, 1, 0, 1, {}, request.stdin == 0)
    agent = AgentPlan("localhost", command_line(mpi, options, program), options.wdir, grace, environ, [rank])
    what = f"{spread(sum(count for _, count in placed), len(placed))} by {program} of {mpi.value}"
    return LaunchPlan(context.job, 1, (agent,), notes=tuple(notes), launcher="mpirun", by_mpirun=what)


def _environment(
    request: LaunchRequest, context: LaunchContext, placed: Sequence[tuple[Host, int]]
) -> tuple[dict[str, str], list[str], list[str]]:
    """Return the environment of mpirun, the names of the variables that ranks on other hosts get, and notes for the
    user.
    """
    inherited = inherited_variables(context.environ)
    exports, notes = requested_variables(request.exports, inherited)
    ours = {
        "PATH": search_path(inherited.get("PATH", os.defpath)),
        "MASTER_ADDR": master_address([(host.name, count) for host, count in placed], context),
        "MASTER_PORT": str(context.master_port),
        **settings(request),
        **({"DISTRUN_SHARE_GPUS": "1"} if request.share_gpus else {}),
        **_interfaces(request, inherited),
    }
    environ = {"PYTHONUNBUFFERED": "1", **inherited, **ours, **exports}
    environ |= horovod.search_path(environ)
    threads = thread_variables(environ, context.cores, max(count for _, count in placed))
    notes += [f"{name}={value} on every host; set it to override" for name, value in threads.items()]
    environ |= threads
    names = {*ours, *exports, *threads, *forwarded_variables(environ), *_FROM_HERE}
    return environ, sorted(names & environ.keys()), notes


def _interfaces(request: LaunchRequest, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that tell other libraries the interfaces of `--network`. Variables that are already set
    stay.
    """
    entries = parse_network(request.network) if request.network else []
    names = sorted({entry for entry in entries if isinstance(entry, str)})
    if len(names) < len(entries) or not names:
        return {}
    listed = ",".join(names)
    chosen = {"NCCL_SOCKET_IFNAME": "=" + listed}
    if len(names) == 1:
        # FI_TCP_IFACE is libfabric's, for MPICH and Intel MPI.
        chosen |= {"GLOO_SOCKET_IFNAME": listed, "FI_TCP_IFACE": listed}
    return {name: value for name, value in chosen.items() if name not in environ}


def _split(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as error:
        raise UsageError(f"--mpi-args {arguments!r} cannot be split: {error}; quote as in a shell") from None


def _refuse(request: LaunchRequest, ssh: SshOptions) -> None:
    """Refuse options that work only for ranks that distrun starts itself.

    Raises:
        UsageError: the request has such an option. The first is named.
    """
    odd = next((host.name for host in request.hosts if ":" in host.name), None)
    user = next((f"{host.user}@{host.name}" for host in request.hosts if host.user is not None), None)
    asked = {
        "--rank-filter": request.rank_filter,
        "--openmpi-env": request.openmpi_env,
        "--tf-config": request.tf_config,
        "--ps": request.ps,
        "--map-by node": request.map_by == "node",
        "--python": ssh.python,
        "a list of GPUs": any(host.gpus for host in request.hosts),
        f"--stdin {request.stdin} (0 is possible)": request.stdin,
        f"an account ({user}; give User in ~/.ssh/config)": user,
        f"an address of IPv6 ({odd}; give the host's name)": odd,
    }
    for option, value in asked.items():
        if value:
            raise UsageError(f"--launcher mpirun cannot be combined with {option}: leave it out, or use --launcher ssh")
    if any(re.search(r"\s", option) for option in ssh.arguments):
        raise UsageError(
            f"the SSH options {ssh.arguments} have a space, at which mpirun would split them: write them into "
            "~/.ssh/config"
        )
