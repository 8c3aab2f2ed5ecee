"""The options of `distrun` itself, in the order of its help."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

import click

from distrun.contract.settings import ALGORITHMS, HALF_PRECISION, WIRE_DTYPES
from distrun.host.numerals import MOST_SLOTS, real_number
from distrun.runner.command_lines.elastic_options import ELASTIC_OPTIONS
from distrun.runner.hosts.options import connection_options, node_options, output_options
from distrun.runner.observation.options import OBSERVATION_OPTIONS
from distrun.runner.planning.request import GRACE
from distrun.runner.shipping.options import SHIPPING_OPTIONS
from distrun.runner.system.click_options import Command, giving, option

_SETTINGS_FILES = ("distrun.toml", "pyproject.toml")


def _seconds(value: str) -> float:
    seconds = real_number(value)
    if seconds is None:
        raise click.BadParameter(f"{value!r} is not a number of seconds >= 0")
    return seconds


def some_seconds(value: str) -> float:
    """Return an option's value as seconds above 0 (a click type)."""
    seconds = _seconds(value)
    if not seconds:
        raise click.BadParameter("0 seconds are too few: give more, or leave it out")
    return seconds


def settings_files() -> list[str]:
    """Return the files that may have settings, from the working directory up to the repository's root or the home."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        return []
    found, home = [], os.path.realpath(os.path.expanduser("~"))
    while True:
        found += [path for name in _SETTINGS_FILES if _may_have_settings(path := os.path.join(folder, name))]
        if folder in (home, os.path.dirname(folder)) or os.path.exists(os.path.join(folder, ".git")):
            return found
        folder = os.path.dirname(folder)


def _may_have_settings(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return path.endswith("distrun.toml") or b"distrun" in file.read()
    except (FileNotFoundError, IsADirectoryError):
        return False
    except OSError:
        return True  # whoever reads it says why that is not possible


def _print_version(context: click.Context, parameter: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        from distrun import __version__

        click.echo(f"distrun {__version__}")
        context.exit()


def _read_settings(context: click.Context, parameter: click.Parameter, profile: str | None) -> None:
    """Have options that are not on the command line come from the settings file, if there is one."""
    if profile == "none":
        return
    if not (files := settings_files()) and profile is None:
        return
    from distrun.runner.command_lines.settings_file import read

    context.obj = read(files, profile, [one for one in context.command.params if isinstance(one, click.Option)])
    if context.obj is not None:
        context.default_map = context.obj.values


launch_options = giving(
    option("-np --num-proc np N", "Number of ranks. Default: all slots.", int),
    option(
        "-H --hosts LIST",
        "Hosts and their slots: localhost:4,me@b:4,[fd00::1]:2. c:[0,2] has two slots, on GPUs 0 and 2; "
        "c:4[0,2] has four slots on these GPUs. Default: the allocation of Slurm, PBS, LSF, Grid Engine or Flux, else "
        "this machine.",
    ),
    option("-hostfile --hostfile FILE", "Read the hosts from a file, one 'NAME slots=N gpus=0,2' per line."),
    option(
        "--slots N",
        "Slots of hosts listed without a number, 1 by default; or of this machine when none is listed, one per "
        "GPU or else per core by default.",
        click.IntRange(1, MOST_SLOTS),
    ),
    option(
        "--ranks-per-host N",
        "Ranks on each host, whatever its slots. Default: its slots.",
        click.IntRange(1, MOST_SLOTS),
    ),
    option("--oversubscribe", "Let -np N be more than the slots of the hosts."),
    option(
        "--map-by",
        "slot: fill all slots of a host before the next one's; node: hosts take turns. Default: slot.",
        click.Choice(["slot", "node"]),
        default="slot",
    ),
    option(
        "--bind-to",
        "Divide the CPUs of a host among its ranks, by whole cores, sockets or NUMA nodes. Default: none.",
        click.Choice(["none", "core", "socket", "numa"]),
        default="none",
    ),
    option("--report-bindings", "Print the CPUs that each rank is bound to."),
    option(
        "--launcher",
        "The program that starts ranks on other hosts; mpirun starts all ranks. Default: srun within a Slurm "
        "allocation, else ssh.",
        click.Choice(["ssh", "srun", "mpirun"]),
    ),
    node_options,
    *ELASTIC_OPTIONS,
    *OBSERVATION_OPTIONS,
    option(
        "--auto",
        "Train a plain single-process script of PyTorch or Keras on all ranks, unchanged. global, the default: "
        "each batch of the script is divided among the ranks; scale: each rank takes a batch of the script's size; "
        "explain: print what would be changed and start nothing. Values are written with =, as in --auto=scale.",
        click.Choice(["global", "scale", "explain"]),
        is_flag=False,
        flag_value="global",
    ),
    option("--mpi-args ARGS", "Further arguments for mpirun, as in --mpi-args '--mca pml ob1'."),
    option("--share-gpus", "Allow ranks to share GPUs where there are more ranks than GPUs."),
    option(
        "-x exports NAME[=VALUE]",
        "Pass a variable, or all that match a pattern such as 'NCCL_*', to the ranks. Ranks on this machine have "
        "all variables of this shell; those on others have the variables of a login there, PYTHONPATH, DISTRUN_* and "
        "what -x adds.",
        multiple=True,
    ),
    option("--wdir DIR", "Working directory of the ranks. Default: the current one, on every host."),
    *SHIPPING_OPTIONS,
    connection_options,
    option(
        "--keepalive S",
        "Seconds after which another host that sends nothing counts as gone and its ranks end; 0: never. Default: 15.",
        _seconds,
    ),
    option(
        "--network LIST",
        "Interfaces or subnets for the traffic between hosts, as in eth1,10.0.0.0/8. Default: any that lead to "
        "the other hosts.",
    ),
    option(
        "--autotune",
        "Compare settings of communication in the first 50 steps, and keep the fastest. Those that are set are "
        "not changed.",
    ),
    option("--autotune-log-file FILE", "Write what --autotune tries to a CSV file, by rank 0."),
    option(
        "--autotune-allow-wire-dtype autotune_wire_dtypes",
        "Let --autotune try what --wire-dtype does, which rounds gradients.",
        click.Choice(HALF_PRECISION),
        multiple=True,
    ),
    option("--encrypt", "Encrypt what ranks of different hosts send each other, by TLS."),
    option(
        "--wire-dtype",
        "Send float32 and float64 between hosts in half precision, or quantised to 8 or 4 bits, when they are reduced.",
        click.Choice(WIRE_DTYPES),
    ),
    option(
        "--algorithm",
        "How arrays are reduced between hosts. Default: auto, by their size, the hosts and their links.",
        click.Choice(ALGORITHMS),
    ),
    output_options,
    option("--stdin none|RANK", "The rank that gets standard input. Default: none.", default="none"),
    option("--start-timeout S", "Seconds the ranks may take to start. Default: 60.", some_seconds),
    option("--timeout S", "End the job after S seconds, with exit status 124. Default: never.", some_seconds),
    option("--grace S", f"Seconds from SIGTERM to SIGKILL. Default: {GRACE:g}.", _seconds, default=GRACE),
    option("--stall-warning S", "Report an operation that has waited for S seconds; 0: never. Default: 60.", _seconds),
    option("--stall-timeout S", "Fail an operation that has waited for S seconds; 0: never. Default: 0.", _seconds),
    option(
        "--tf-config",
        "Set TF_CONFIG for tf.distribute. All ranks are workers; with --ps N the first N are parameter servers, "
        "the next is the chief and the others are workers, and the job ends with the chief.",
    ),
    option("--ps N", "Number of parameter servers in TF_CONFIG. Default: 0.", click.IntRange(0), default=0),
    option(
        "--servers N",
        "Start N parameter servers beside the ranks, for AsyncOptimizer; hosts take turns. Default: 0.",
        click.IntRange(0, MOST_SLOTS),
        default=0,
    ),
    option(
        "--server-restarts N",
        "Restart servers that fail, with their parameters, N times in all. Default: 0, the job ends.",
        click.IntRange(0),
        default=0,
    ),
    option(
        "--server-hosts HOST[,HOST...]",
        "The hosts of the parameter servers, which need have no ranks. Default: those of the ranks.",
    ),
    option(
        "--server-checkpoint DIR[:SECONDS]",
        "Copy what servers hold into a folder that all hosts see, every 60 s by default: one whose host is lost, "
        "with no rank on it, is started on another host with the last copy, as --server-restarts allows.",
    ),
    option("--openmpi-env", "Also set OMPI_COMM_WORLD_RANK and its like, which jax.distributed.initialize() reads."),
    option("--horovod", "Let 'import horovod' give distrun: for scripts of Horovod, unchanged."),
    option(
        "--torch-backend",
        "Let torch.distributed use distrun where a script asks for gloo or for nothing: for DDP, FSDP and what is "
        "built on them, unchanged.",
    ),
    option("--torchrun-env", "Also set TORCHELASTIC_RUN_ID and the other variables that torchrun sets."),
    option(
        "--profile NAME",
        "Take options from this profile of distrun.toml, or of [tool.distrun] in pyproject.toml; none: do not read "
        "these files. Options of the command line win.",
        expose_value=False,
        is_eager=True,
        callback=_read_settings,
    ),
    option("--dry-run", "Print the plan and start nothing."),
    option("-q --quiet", "Leave out notes and hints; errors and warnings stay."),
    option("-v --verbose", "Print what the launcher does."),
    option(
        "-cb --check-build",
        "Try which frameworks, launchers, controllers and operations work on this machine, and print them.",
    ),
    option("--version", "Print the version.", expose_value=False, is_eager=True, callback=_print_version),
)


def every_launch_option() -> list[click.Option]:
    """Return all options of a launch, in the order of its help."""

    @launch_options
    def have_all() -> None:
        """A stand-in that collects all options."""

    found: list[click.Option] = have_all.__click_params__
    return found[::-1]


def some_launch_options(names: Collection[str]) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a launch with these names to a command, in the order of its help."""
    chosen = [option for option in every_launch_option()[::-1] if option.name in names]

    def give(command: Command) -> Command:
        own: list[click.Parameter] = command.__dict__.setdefault("__click_params__", [])
        own += chosen
        return command

    return give
