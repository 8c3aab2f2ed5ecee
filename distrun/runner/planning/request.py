"""The inputs of a plan: the user's request, and the facts about the launching process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distrun.runner.planning.hosts import Host
from distrun.runner.planning.ssh_config import Route

GRACE = 30.0
"""Seconds from SIGTERM to SIGKILL, if the user does not say. torchrun's number."""


@dataclass(frozen=True)
class LaunchRequest:
    """The user's request, with the defaults of the command line."""

    command: tuple[str, ...]
    np: int | None = None
    """The number of ranks. None = all slots of the hosts."""
    hosts: tuple[Host, ...] = ()
    """The hosts. Empty = this machine, with its default slots."""
    exports: tuple[str, ...] = ()
    """The values of `-x`."""
    wdir: str | None = None
    openmpi_env: bool = False
    torchrun_env: bool = False
    """Whether ranks get the variables that only torchrun sets."""
    name: str = "none"
    """The job's name, as torchrun calls it: TORCHELASTIC_RUN_ID."""
    nodes: int | None = None
    """The number of hosts that have a launcher of their own, including this one. It overrides a scheduler's allocation.
    None = only this launcher exists.
    """
    slots: int | None = None
    """Slots of each host that is listed without slots (default 1), or of this machine if no host is listed."""
    ranks_per_host: int | None = None
    """The number of ranks of every host. None = its slots."""
    oversubscribe: bool = False
    """Whether hosts take more ranks than they have slots if `np` asks for it."""
    bind_to: str = "none"
    """The kind of CPUs that ranks are bound to: core, socket, numa or none."""
    report_bindings: bool = False
    map_by: str = "slot"
    """`slot`: all slots of a host are filled before the next host's. `node`: hosts take turns."""
    share_gpus: bool = False
    """Whether a host may have more ranks than GPUs were listed for it."""
    stdin: int | None = None
    """The rank that gets the launcher's standard input."""
    stall_warning: float | None = None
    stall_timeout: float | None = None
    start_timeout: float | None = None
    keepalive: float | None = None
    network: str | None = None
    """The interfaces and subnets that ranks of different hosts may use, separated by commas."""
    encrypt: bool = False
    """Whether traffic between ranks of different hosts is encrypted."""
    wire_dtype: str | None = None
    """The half-precision type that float32 and float64 are converted to between hosts. None = no conversion."""
    algorithm: str | None = None
    """The algorithm for allreduce between hosts. None = chosen for each array."""
    scalars: bool = False
    """Whether rank 0 logs its step rate and its use of time to TensorBoard and MLflow, where its script logs there."""
    autotune: bool = False
    """Whether communication settings are tuned while the job runs."""
    autotune_log: str | None = None
    """The file that rank 0 logs the tuning's trials to."""
    autotune_wire_dtypes: tuple[str, ...] = ()
    """The types that tuning may choose for `wire_dtype`."""
    launcher: str | None = None
    """The program that starts ranks on other hosts: ssh, srun or mpirun. None = the one that fits."""
    mpi_args: str | None = None
    """Further arguments for mpirun, quoted as in a shell."""
    tf_config: bool = False
    """Whether ranks get TF_CONFIG."""
    ps: int = 0
    """The number of ranks that are parameter servers in TF_CONFIG."""
    servers: int = 0
    """The number of distrun's own parameter servers, which are not ranks."""
    server_restarts: int = 0
    """The number of times that failed servers are started again, in all."""
    server_hosts: tuple[Host, ...] = ()
    """The hosts of the servers, which need not have ranks. Empty = the hosts of the ranks."""
    server_copies: str = ""
    """`SECONDS:FOLDER`: the interval and the folder of copies of the servers' parameters. Empty = no copies."""
    tag_output: bool = True
    output_dir: str | None = None
    rank_filter: str | None = None
    horovod: bool = False
    """Whether the command is a Horovod script, which finds distrun when it imports `horovod`."""
    auto: bool = False
    """Whether the command is a plain script that `distrun.auto` runs."""
    timeline: Mapping[str, str] = field(default_factory=dict)
    """The settings of a timeline that the user asks for, as variables."""
    writes_timeline: bool = False
    """Whether the launcher writes the timeline that settings ask for. Otherwise ranks do."""
    quiet: bool = False
    """Whether ranks give no hints either."""
    torch_backend: bool = False
    """Whether torch.distributed uses distrun where the command asks for gloo or for no backend."""


@dataclass(frozen=True)
class LaunchContext:
    """The facts that a plan needs about the launching process."""

    environ: Mapping[str, str]
    cwd: str
    job: str
    key: str
    master_port: int
    cores: int
    slots: int
    """Slots of this machine when the user lists no hosts."""
    routes: Mapping[str, Route] = field(default_factory=dict)
    """The routes to the hosts that are not this machine."""
    address: str = "127.0.0.1"
    """This machine's address as the other hosts reach it."""
