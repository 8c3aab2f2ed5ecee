"""The command line of mpirun, and of the ranks that it starts, which depend on its MPI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distrun.errors import UsageError
from distrun.host.connections.tcp_options import keepalive_times
from distrun.runner.planning.mpirun.program import MpiImplementation

_MPIRUN_SHARE = 2 / 3  # of the keepalive: mpirun's own timeout for a host that does not answer
# The names that MPIs have for RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE.
_OPENMPI_NAMES = ("COMM_WORLD_RANK", "COMM_WORLD_SIZE", "COMM_WORLD_LOCAL_RANK", "COMM_WORLD_LOCAL_SIZE")
_HYDRA_NAMES = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
# `sh -c` runs this script in each rank, and it runs the rank's own command. GROUP_RANK is the index of the host among
# the hosts that have a rank with this local rank. If --mpi-args do not place ranks host by host, it is unknown and
# unset.
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


@dataclass(frozen=True)
class MpirunOptions:
    """The job that mpirun is to start, independent of the MPI."""

    command: Sequence[str]
    hosts: Sequence[tuple[str, int]]
    """Each host and its number of ranks. Ranks are numbered in this order."""
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
    """Seconds after which ranks count a host that does not answer as lost. 0 = never."""
    extra: Sequence[str] = ()
    """The user's own arguments, which come last so that they override the others."""


def command_line(mpi: MpiImplementation, options: MpirunOptions, program: str = "mpirun") -> list[str]:
    """Return mpirun's command line. It has the names of variables and never their values, which any user could see with
    ps.

    Raises:
        UsageError: this mpirun has no option for something in `options`.
    """
    if mpi is MpiImplementation.MPICH:
        return _mpich(options, program)
    return _intel(options, program) if mpi is MpiImplementation.INTEL else _openmpi(mpi, options, program)


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
        # mpirun must notice a lost host before the ranks do. Otherwise it sends that host the order to end its ranks,
        # and while data is unacknowledged, the kernel sends no keepalive probes.
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
    words += [*_hydra(MpiImplementation.MPICH, options), "-bind-to", options.bind_to]
    return [*words, *options.extra, *options.command]


def _intel(options: MpirunOptions, program: str) -> list[str]:
    """Return Intel MPI's command line. Its host list has no numbers of ranks, so each host gets an argument set of its
    own.
    """
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
    # Hydra's -iface names the interface of mpiexec itself, which may have another name than the interfaces of the
    # hosts.
    return [*words, *(["-genvlist", ",".join(options.exports)] if options.exports else [])]


def as_rank(mpi: MpiImplementation, command: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Return `command` wrapped in a shell that sets RANK and the like. `counts` are the ranks on each host."""
    names = _HYDRA_NAMES if mpi.is_hydra else [f"OMPI_{name}" for name in _OPENMPI_NAMES]
    told = dict(zip(("rank", "size", "local_rank", "local_size"), (f"{{{name}}}" for name in names), strict=True))
    return ["sh", "-c", _RANK_SCRIPT.format(counts=" ".join(map(str, counts)), **told), "sh", *command]
