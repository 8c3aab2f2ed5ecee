"""The launch contract: the environment variables that tell a rank its place in the job.

The launcher writes it and the runtime reads it. Nothing here imports numpy or a framework, because the launcher must
start without them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields

from distrun.errors import UsageError
from distrun.host.numerals import whole_number

PREFIX = "DISTRUN_"
SHIPPED = "DISTRUN_SHIPPED"
"""The variable with the folder where a host keeps the files that were sent to it. See
`distrun.runner.shipping.arrived`."""
AGENT = "DISTRUN_AGENT"
"""The variable that an agent's guard (`distrun.runner.agent.cleanup.guard`) recognises its ranks' processes by."""

SERVERS = "DISTRUN_SERVERS"
"""The variable with the endpoints of the parameter servers, in order, separated by semicolons. A server's endpoints are
its addresses, separated by commas, in the order to try them. Set on ranks only if there are servers."""
SERVER = "DISTRUN_SERVER"
"""The variable with the number of a parameter server. A server is not a rank, and has no contract."""
SERVER_MEMORY = "DISTRUN_SERVER_MEMORY"
"""The variable with the descriptor of the memory where a server keeps its parameters. It outlives the server."""
SERVER_RESTARTS = "DISTRUN_SERVER_RESTARTS"
"""The variable with the number of times that servers may be restarted in all."""
SERVER_COPIES = "DISTRUN_SERVER_COPIES"
"""The variable with the seconds between copies of the servers' contents and, after a colon, the folder of the job where
the copies are. Only if it is set may a server be restarted on another host."""
SERVER_GENERATION = "DISTRUN_SERVER_GENERATION"
"""The variable with the number of server restarts before this one, for a server that was restarted on another host."""


@dataclass(frozen=True)
class LaunchContract:
    """A rank's place in the job, as the launcher assigns it. `to_environ` and `from_environ` are inverses."""

    job: str
    """Random name of the job, 32 hexadecimal digits, the same on all ranks. It is not a secret."""
    key: str
    """The job key, 64 hexadecimal digits. A peer proves that it knows it before anything it sends is read. A secret."""
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    """Index of this host among the hosts that have a rank with this local rank."""
    cross_size: int
    hostname: str
    """The host's name in the launch plan."""
    master_addr: str
    """An address of rank 0's host for other hosts, used by torch.distributed, JAX and others."""
    master_port: int
    """A port that was free on rank 0's host at launch."""
    rendezvous: str = ""
    """The endpoints where rank 0 listens for the other ranks, `10.0.0.1:40123,[fd00::1]:40123`, in the order to try
    them. Their port is reserved for rank 0. Empty when all ranks are on one host."""
    generation: int = 1
    """The number of the world in the job, from 1. An elastic job begins a new one when ranks come or go. 0 for a
    process that will join later: its numbers are likely ones, and the launcher sends the final ones (see
    `elastic.messages`)."""
    slot: int = -1
    """The slot of its host that this process keeps for life, which is the number of its GPU. Local ranks may change
    with the generation. -1: the local rank."""
    restart: int = 0
    """How often the job, or its ranks, were restarted before this process started."""

    def __post_init__(self) -> None:
        if self.slot < 0:
            object.__setattr__(self, "slot", self.local_rank)

    def to_environ(self) -> dict[str, str]:
        """Return the variables of this contract: DISTRUN_*, and the ones that scripts for other launchers read."""
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
        """Return the same numbers as Open MPI's OMPI_COMM_WORLD_* variables, for scripts that read these.

        distrun's runtime looks for DISTRUN_* first, so a rank that has both is still a rank of distrun.
        """
        return {
            "OMPI_COMM_WORLD_RANK": str(self.rank),
            "OMPI_COMM_WORLD_SIZE": str(self.size),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(self.local_rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(self.local_size),
            "OMPI_COMM_WORLD_NODE_RANK": str(self.local_rank),
            # JAX ignores the others if this one is missing.
            "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{self.master_addr}:{self.master_port}",
        }

    def torchrun_environ(self, name: str, node: int, nodes: int, max_restarts: int = 0) -> dict[str, str]:
        """Return the variables that torchrun's ranks have in addition to the ones from `to_environ`.

        Args:
            name: the job's name, `--rdzv-id`.
            node: the index of this rank's host.
            nodes: the number of hosts.
            max_restarts: the number of times that ranks may be restarted.
        """
        return {
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": str(nodes),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.size),
            "TORCHELASTIC_RUN_ID": name,
            "TORCHELASTIC_RESTART_COUNT": str(self.restart),
            "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
            "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 serves the store of torch.distributed
        }

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        """Whether distrun's launcher made this environment."""
        return PREFIX + "JOB" in environ

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> LaunchContract:
        """Return the contract that `to_environ` has written into an environment.

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
            elif (number := whole_number(text, 0, sys.maxsize)) is not None:
                values[field.name] = number
            else:
                raise UsageError(f"{variable}={text!r} is not a whole number >= 0: start the script with `distrun`")
        return cls(**values)  # type: ignore[arg-type]  # the types follow the fields, checked above
