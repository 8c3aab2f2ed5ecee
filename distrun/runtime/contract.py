"""The launch contract: the environment variables a rank is born with, the only thing runner and runtime share.

Nothing here imports anything but the standard library, because the launcher must start without numpy or a framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from distrun.errors import UsageError

PREFIX = "DISTRUN_"

# Settings that are not part of a rank's identity. The launcher sets them from its flags, users may set them by hand; each
# is read in one place of the runtime.
STALL_WARNING = "DISTRUN_STALL_WARNING"  # seconds after which a waiting operation is reported; 0 = never (default 60)
STALL_TIMEOUT = "DISTRUN_STALL_TIMEOUT"  # seconds after which it fails on every rank; 0 = never (default 0)
START_TIMEOUT = "DISTRUN_START_TIMEOUT"  # seconds the ranks wait for one another in init() (default 60)
BACKEND = "DISTRUN_BACKEND"  # auto (default), shared_memory, tcp or mpi
WIRE_DTYPE = (
    "DISTRUN_WIRE_DTYPE"  # float16 or bfloat16: in what float32 and float64 travel between hosts (default: themselves)
)
NETWORK = "DISTRUN_NETWORK"  # interfaces (names) or subnets (10.0.0.0/8), by commas, that ranks of other hosts may use


@dataclass(frozen=True)
class LaunchContract:
    """What a rank is told at birth. One instance per rank; `to_environ` and `from_environ` are inverse to each other."""

    job: str
    """Random name of the job, 32 hexadecimal digits, the same on all ranks. Not a secret."""
    key: str
    """The job key, 64 hexadecimal digits: peers prove knowledge of it before anything they send is read. A secret."""
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    """Index of this host among the hosts that have a rank with my local rank."""
    cross_size: int
    hostname: str
    """Name of the host as the plan has it."""
    master_addr: str
    """Address of rank 0's host as other hosts reach it, for torch.distributed, JAX and their like."""
    master_port: int
    """A port that was free on rank 0's host at launch."""
    rendezvous: str = ""
    """Where rank 0 takes the calls of the other ranks, `10.0.0.1:40123,[fd00::1]:40123`: its addresses in the order in which
    to try them, each with a port that is kept free for it. Empty when all ranks are on one host."""

    def to_environ(self) -> dict[str, str]:
        """The variables of this contract: ours (DISTRUN_*) and those that other frameworks' scripts read."""
        ours = {PREFIX + field.name.upper(): str(getattr(self, field.name)) for field in fields(self)}
        return {
            **ours,
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.cross_rank),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
        }

    def openmpi_environ(self) -> dict[str, str]:
        """The OMPI_COMM_WORLD_* variables, on request, for scripts that read Open MPI's. Our own runtime asks for
        DISTRUN_* first, so a rank that has both is still a rank of distrun."""
        return {
            "OMPI_COMM_WORLD_RANK": str(self.rank),
            "OMPI_COMM_WORLD_SIZE": str(self.size),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(self.local_rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(self.local_size),
            "OMPI_COMM_WORLD_NODE_RANK": str(self.local_rank),
            "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{self.master_addr}:{self.master_port}",  # tells JAX that all these count
        }

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        """Whether this environment was made by distrun's launcher."""
        return PREFIX + "JOB" in environ

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> LaunchContract:
        """Read the contract back.

        Raises:
            UsageError: a variable is missing or not an integer.
        """
        values: dict[str, str | int] = {}
        for field in fields(cls):
            variable = PREFIX + field.name.upper()
            text = environ.get(variable)
            if text is None:
                raise UsageError(f"{variable} is not set though {PREFIX}JOB is: start the script with `distrun`")
            if field.type == "str":
                values[field.name] = text
            elif text.isdecimal():
                values[field.name] = int(text)
            else:
                raise UsageError(f"{variable}={text!r} is not a whole number >= 0: start the script with `distrun`")
        return cls(**values)  # type: ignore[arg-type]  # the types follow the fields, checked above
