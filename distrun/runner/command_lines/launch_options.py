"""The options of `distrun` itself, in the order of its help."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import click

from distrun.contract.settings import ALGORITHMS, HALF_PRECISION, WIRE_DTYPES
from distrun.host.numerals import MOST_SLOTS
from distrun.runner.command_lines.elastic_options import ELASTIC_OPTIONS
from distrun.runner.hosts.options import connection_options, giving, node_options, output_options
from distrun.runner.observation.options import OBSERVATION_OPTIONS
from distrun.runner.shipping.options import SHIPPING_OPTIONS

Command = TypeVar("Command", bound=Callable[..., Any])


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise click.BadParameter(f"{value!r} is not a number of seconds >= 0")
    return seconds


def some_seconds(value: str) -> float:
    """Return an option's value as seconds above 0 (a click type)."""
    seconds = _seconds(value)
    if not seconds:
        raise click.BadParameter("0 seconds are too few: give more, or leave it out")
    return seconds


launch_options = giving(
    click.option("-np", "--num-proc", "np", type=int, metavar="N", help="Number of ranks. Default: all slots."),
    click.option(
        "-H",
        "--hosts",
        metavar="LIST",
        help="Hosts and their slots: localhost:4,me@b:4,[fd00::1]:2. c:[0,2] has two slots, on GPUs 0 and 2; "
        "c:4[0,2] has four slots on these GPUs. Default: the allocation of Slurm, PBS, LSF, Grid Engine or Flux, else "
        "this machine.",
    ),
    click.option(
        "-hostfile",
        "--hostfile",
        metavar="FILE",
        help="Read the hosts from a file, one 'NAME slots=N gpus=0,2' per line.",
    ),
    click.option(
        "--slots",
        type=click.IntRange(1, MOST_SLOTS),
        metavar="N",
        help="Slots of hosts listed without a number, 1 by default; or of this machine when none is listed, one per "
        "GPU or else per core by default.",
    ),
    click.option(
        "--ranks-per-host",
        type=click.IntRange(1, MOST_SLOTS),
        metavar="N",
        help="Ranks on each host, whatever its slots. Default: its slots.",
    ),
    click.option("--oversubscribe", is_flag=True, help="Let -np N be more than the slots of the hosts."),
    click.option(
        "--map-by",
        type=click.Choice(["slot", "node"]),
        default="slot",
        help="slot: fill all slots of a host before the next one's; node: hosts take turns. Default: slot.",
    ),
    click.option(
        "--bind-to",
        type=click.Choice(["none", "core", "socket", "numa"]),
        default="none",
        help="Divide the CPUs of a host among its ranks, by whole cores, sockets or NUMA nodes. Default: none.",
    ),
    click.option("--report-bindings", is_flag=True, help="Print the CPUs that each rank is bound to."),
    click.option(
        "--launcher",
        type=click.Choice(["ssh", "srun", "mpirun"]),
        help="The program that starts ranks on other hosts; mpirun starts all ranks. Default: srun within a Slurm "
        "allocation, else ssh.",
    ),
    node_options,
    *ELASTIC_OPTIONS,
    *OBSERVATION_OPTIONS,
    click.option(
        "--auto",
        type=click.Choice(["global", "scale", "explain"]),
        is_flag=False,
        flag_value="global",
        help="Train a plain single-process script of PyTorch or Keras on all ranks, unchanged. global, the default: "
        "each batch of the script is divided among the ranks; scale: each rank takes a batch of the script's size; "
        "explain: print what would be changed and start nothing. Values are written with =, as in --auto=scale.",
    ),
    click.option("--mpi-args", metavar="ARGS", help="Further arguments for mpirun, as in --mpi-args '--mca pml ob1'."),
    click.option("--share-gpus", is_flag=True, help="Allow ranks to share GPUs where there are more ranks than GPUs."),
    click.option(
        "-x",
        "exports",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Pass a variable, or all that match a pattern such as 'NCCL_*', to the ranks. Ranks on this machine have "
        "all variables of this shell; those on others have the variables of a login there, PYTHONPATH, DISTRUN_* and "
        "what -x adds.",
    ),
    click.option(
        "--wdir", metavar="DIR", help="Working directory of the ranks. Default: the current one, on every host."
    ),
    *SHIPPING_OPTIONS,
    connection_options,
    click.option(
        "--keepalive",
        type=_seconds,
        metavar="S",
        help="Seconds of silence after which another host counts as gone and its ranks end; 0: never. Default: 15.",
    ),
    click.option(
        "--network",
        metavar="LIST",
        help="Interfaces or subnets for the traffic between hosts, as in eth1,10.0.0.0/8. Default: any that lead to "
        "the other hosts.",
    ),
    click.option(
        "--autotune",
        is_flag=True,
        help="Compare settings of communication in the first 50 steps, and keep the fastest. Those that are set are "
        "not changed.",
    ),
    click.option("--autotune-log-file", metavar="FILE", help="Write what --autotune tries to a CSV file, by rank 0."),
    click.option(
        "--autotune-allow-wire-dtype",
        "autotune_wire_dtypes",
        type=click.Choice(HALF_PRECISION),
        multiple=True,
        help="Let --autotune try what --wire-dtype does, which rounds gradients.",
    ),
    click.option("--encrypt", is_flag=True, help="Encrypt what ranks of different hosts send each other, by TLS."),
    click.option(
        "--wire-dtype",
        type=click.Choice(WIRE_DTYPES),
        help="Send float32 and float64 between hosts in half precision, or quantised to 8 or 4 bits, when they are "
        "reduced.",
    ),
    click.option(
        "--algorithm",
        type=click.Choice(ALGORITHMS),
        help="How arrays are reduced between hosts. Default: auto, by their size, the hosts and their links.",
    ),
    output_options,
    click.option(
        "--stdin", default="none", metavar="none|RANK", help="The rank that gets standard input. Default: none."
    ),
    click.option(
        "--start-timeout", type=some_seconds, metavar="S", help="Seconds the ranks may take to start. Default: 60."
    ),
    click.option(
        "--timeout",
        type=some_seconds,
        metavar="S",
        help="End the job after S seconds, with exit status 124. Default: never.",
    ),
    click.option(
        "--grace", type=_seconds, default=5.0, metavar="S", help="Seconds from SIGTERM to SIGKILL. Default: 5."
    ),
    click.option(
        "--stall-warning",
        type=_seconds,
        metavar="S",
        help="Report an operation that has waited for S seconds; 0: never. Default: 60.",
    ),
    click.option(
        "--stall-timeout",
        type=_seconds,
        metavar="S",
        help="Fail an operation that has waited for S seconds; 0: never. Default: 0.",
    ),
    click.option(
        "--tf-config",
        is_flag=True,
        help="Set TF_CONFIG for tf.distribute. All ranks are workers; with --ps N the first N are parameter servers, "
        "the next is the chief and the others are workers, and the job ends with the chief.",
    ),
    click.option(
        "--ps",
        type=click.IntRange(0),
        default=0,
        metavar="N",
        help="Number of parameter servers in TF_CONFIG. Default: 0.",
    ),
    click.option(
        "--servers",
        type=click.IntRange(0, MOST_SLOTS),
        default=0,
        metavar="N",
        help="Start N parameter servers beside the ranks, for AsyncOptimizer; hosts take turns. Default: 0.",
    ),
    click.option(
        "--server-restarts",
        type=click.IntRange(0),
        default=0,
        metavar="N",
        help="Restart servers that fail, with their parameters, N times in all. Default: 0, the job ends.",
    ),
    click.option(
        "--server-hosts",
        metavar="HOST[,HOST...]",
        help="The hosts of the parameter servers, which need have no ranks. Default: those of the ranks.",
    ),
    click.option(
        "--server-checkpoint",
        metavar="DIR[:SECONDS]",
        help="Copy what servers hold into a folder that all hosts see, every 60 s by default: one whose host is lost, "
        "with no rank on it, is started on another host with the last copy, as --server-restarts allows.",
    ),
    click.option(
        "--openmpi-env",
        is_flag=True,
        help="Also set OMPI_COMM_WORLD_RANK and its like, which jax.distributed.initialize() reads.",
    ),
    click.option(
        "--horovod", is_flag=True, help="Let 'import horovod' give distrun: for scripts of Horovod, unchanged."
    ),
    click.option(
        "--torch-backend",
        is_flag=True,
        help="Let torch.distributed use distrun where a script asks for gloo or for nothing: for DDP, FSDP and what is "
        "built on them, unchanged.",
    ),
    click.option(
        "--torchrun-env",
        is_flag=True,
        help="Also set TORCHELASTIC_RUN_ID and the other variables that torchrun sets.",
    ),
    click.option("--dry-run", is_flag=True, help="Print the plan and start nothing."),
    click.option("-q", "--quiet", is_flag=True, help="Leave out the launcher's notes; errors and warnings stay."),
    click.option("-v", "--verbose", is_flag=True, help="Print what the launcher does."),
    click.option(
        "-cb",
        "--check-build",
        is_flag=True,
        help="Try which frameworks, launchers, controllers and operations work on this machine, and print them.",
    ),
    click.option("--version", is_flag=True, help="Print the version."),
)


def some_launch_options(names: Collection[str]) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a launch with these names to a command, in the order of its help."""

    @launch_options
    def have_all() -> None:
        """A stand-in that collects all options."""

    every: list[click.Option] = have_all.__click_params__
    chosen = [option for option in every if option.name in names]

    def give(command: Command) -> Command:
        own: list[click.Parameter] = command.__dict__.setdefault("__click_params__", [])
        own += chosen
        return command

    return give
