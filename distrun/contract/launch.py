"""The launch contract: the environment variables by which the launcher tells a rank who it is.

The launcher writes it and the runtime reads it. Nothing here imports anything but the standard library, because the
launcher must start without numpy or a framework.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields

from distrun.errors import UsageError
from distrun.host.numerals import whole_number

PREFIX = "DISTRUN_"
SHIPPED = "DISTRUN_SHIPPED"
"""The variable that says where a host has put what was brought to it; see `distrun.runner.shipping.arrived`."""
AGENT = "DISTRUN_AGENT"
"""The variable by which an agent's guard (`distrun.runner.agent.cleanup.guard`) knows what its ranks have started."""

SERVERS = "DISTRUN_SERVERS"
"""The variable with the endpoints of the parameter servers, in their order, separated by semicolons. Those of one are
its addresses, in the order in which to try them, separated by commas. Ranks have it only if there are servers."""
SERVER = "DISTRUN_SERVER"
"""The variable that tells a parameter server its number. A server is no rank, and has no contract."""
SERVER_MEMORY = "DISTRUN_SERVER_MEMORY"
"""The variable with the descriptor of the memory in which a server keeps its parameters; it outlives the server."""
SERVER_RESTARTS = "DISTRUN_SERVER_RESTARTS"
"""The variable that says how often servers are started again in all."""
SERVER_COPIES = "DISTRUN_SERVER_COPIES"
"""The variable that says how many seconds lie between copies of what servers hold, and, after a colon, the folder of
the job where they are. Only then may a server come back on another host."""
SERVER_GENERATION = "DISTRUN_SERVER_GENERATION"
"""The variable that tells a server which has come to another host how often servers had been started again by then."""


@dataclass(frozen=True)
class LaunchContract:
    """The identity of a rank, as the launcher decides it. `to_environ` and `from_environ` are inverse to each other."""

    job: str
    """Random name of the job, 32 hexadecimal digits, the same on all ranks. Not a secret."""
    key: str
    """The job key, 64 hexadecimal digits: peers prove knowledge of it before anything they send is read. A secret."""
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
    """The address by which other hosts reach rank 0's host, for torch.distributed, JAX and their like."""
    master_port: int
    """A port that was free on rank 0's host at launch."""
    rendezvous: str = ""
    """The endpoints at which rank 0 listens for the other ranks, `10.0.0.1:40123,[fd00::1]:40123`, in the order in
    which to try them; their port is kept free for rank 0. Empty when all ranks are on one host."""
    generation: int = 1
    """Counts the worlds of the job, from 1: an elastic job makes a new one when ranks come or go. 0 on a process that
    is to join later: its numbers are what it is likely to be, and the launcher tells it when (see `elastic.messages`).
    """
    slot: int = -1
    """The slot of its host that this process has for life, which is the number of its GPU: local ranks may change with
    the generation. -1 = the local rank."""
    restart: int = 0
    """How often the job, or its ranks, were started again before this process."""

    def __post_init__(self) -> None:
        if self.slot < 0:
            object.__setattr__(self, "slot", self.local_rank)

    def to_environ(self) -> dict[str, str]:
        """Return the variables of this contract: ours (DISTRUN_*) and those that scripts of other frameworks read."""
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
        """Return the same as Open MPI's OMPI_COMM_WORLD_* variables, for scripts that read those.

        Our own runtime looks for DISTRUN_* first, so a rank that has both is still a rank of distrun.
        """
        return {
            "OMPI_COMM_WORLD_RANK": str(self.rank),
            "OMPI_COMM_WORLD_SIZE": str(self.size),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(self.local_rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(self.local_size),
            "OMPI_COMM_WORLD_NODE_RANK": str(self.local_rank),
            # Without this one, JAX does not look at the others.
            "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{self.master_addr}:{self.master_port}",
        }

    def torchrun_environ(self, name: str, node: int, nodes: int, max_restarts: int = 0) -> dict[str, str]:
        """Return the variables that ranks of torchrun have besides those of `to_environ`.

        Args:
            name: the job's name, `--rdzv-id`.
            node, nodes: the index of this rank's host among so many hosts.
            max_restarts: how often ranks may be started again.
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
        """Whether this environment was made by distrun's launcher."""
        return PREFIX + "JOB" in environ

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> LaunchContract:
        """Return the contract that `to_environ` wrote into an environment.

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
