"""The interface of an environment. Its methods are documented only here."""

from __future__ import annotations

import abc
import hashlib
import socket
import sys
from collections.abc import Mapping
from typing import ClassVar

from distrun.contract.settings import KEY, Settings
from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.host.endpoints import LAST_PORT
from distrun.host.numerals import whole_number
from distrun.runtime.transport.rendezvous.protocol import RendezvousEndpoint

PORTS = 4
"""The number of ports to try where a port is only likely to be free."""
_FIRST_PORT, _PORT_RANGE = 30000, 31000  # 30000 to 60999, where users' servers are rare


class Environment(abc.ABC):
    """A way of starting ranks, recognised by the environment variables that the launcher sets.

    It only reads: it makes no connection, imports nothing, and does not change `environ`.
    """

    name: str
    """The environment's name in messages."""
    is_mpi: ClassVar[bool] = False
    """Whether it starts ranks as an MPI job, so that they can use MPI."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    @classmethod
    @abc.abstractmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        """Whether this launcher made `environ`, which may still be incomplete. Then `topology` raises an error."""

    @abc.abstractmethod
    def topology(self) -> Topology:
        """Return this rank's place in the job.

        Raises:
            UsageError: a variable is missing, is not a whole number, or contradicts another one.
        """

    @abc.abstractmethod
    def job_name(self) -> str:
        """Return a text that the ranks of this job on this host share, and no other job has on this host at the same
        time.

        Local ranks find each other by a name derived from it. It may differ between hosts. It is not a secret, and
        knowing it proves nothing. Where a launcher has one agent per host, the text contains the agent. So two agents
        of a job that in fact share a machine stay separate, as their local ranks are.
        """

    def generation(self) -> int:
        """Return the number of the world in the job, counted from 1. 0: the launcher has not assigned it yet."""
        return 1

    def slot(self) -> int:
        """Return the place on its host that this process keeps for life: its local rank, unless that may change."""
        return self.topology().local_rank

    def job_key(self) -> bytes | None:
        """Return the secret that the ranks of the job share. None if the launcher gives none."""
        return None

    def endpoint(self) -> RendezvousEndpoint | None:
        """Return the endpoint where the ranks of several hosts find each other, or None if MPI has to provide it.

        It is called only when there are several hosts.

        Raises:
            UsageError: a variable needed for it is missing or wrong.
        """
        return None

    def _needed_key(self) -> bytes:
        """Return the key that the user has given to all ranks, for a launcher that gives none itself.

        Raises:
            UsageError: the user has given none either, or one so short that it might be guessed.
        """
        if (key := Settings.of(self._environ).key) is None:
            raise UsageError(
                f"the job has several hosts and {self.name} gives its ranks no secret to know one another by: set "
                f"{KEY} to the same text on all of them, as from `openssl rand -hex 32`, or start the script with "
                "`distrun`"
            )
        return key

    def _endpoint_at_master(self) -> RendezvousEndpoint:
        """Return an endpoint near the master's port, for a launcher that gives rank 0's address but no secret.

        Raises:
            UsageError: the user has given no secret either.
        """
        address, master = self._text("MASTER_ADDR"), self._number("MASTER_PORT")
        key = self._needed_key()
        if not 0 < master <= LAST_PORT:
            raise UsageError(f"MASTER_PORT={master} is not a port: allowed are 1 to {LAST_PORT}")
        direction = 1 if master + PORTS <= LAST_PORT else -1
        return RendezvousEndpoint(tuple((address, master + direction * step) for step in range(1, PORTS + 1)), key)

    def _text(self, variable: str) -> str:
        """Return the value of `variable`, which this environment needs."""
        value = self._environ.get(variable)
        if not value:
            raise UsageError(
                f"{variable} is not set though this looks like a process started by {self.name}: "
                "pass on all of its variables, or start the script with `distrun`"
            )
        return value

    def _number(self, variable: str) -> int:
        """Return the value of `variable` as a whole number >= 0."""
        value = self._text(variable)
        number = whole_number(value, 0, sys.maxsize)
        if number is None:
            raise UsageError(
                f"{variable}={value!r} is not a whole number >= 0: "
                f"let {self.name} set it, or start the script with `distrun`"
            )
        return number


def likely_ports(job: str) -> list[int]:
    """Return the ports that all ranks of a job try. Another job most likely gets different ones."""
    digest = hashlib.sha256(job.encode()).digest()
    return [
        _FIRST_PORT + int.from_bytes(digest[4 * index : 4 * index + 4], "big") % _PORT_RANGE for index in range(PORTS)
    ]


def even_topology(rank: int, size: int, local_rank: int, local_size: int) -> Topology:
    """Return a provisional topology for a launcher that tells nothing of other hosts, as if all were like this one.

    Ranks are assigned to hosts in blocks (`--map-by slot`: 0 1 | 2 3) or round robin (`--map-by node`: 0 2 | 1 3). A
    single rank cannot always distinguish the two (rank 2 with local rank 0, of three hosts with two ranks each, fits
    both). Blocks are the default of every MPI. A rank cannot see either whether another host has a different number of
    ranks. With one host the answer is certain. With several, `init` replaces it by the true one when the ranks are
    connected.
    """
    on_each = max(local_size, 1)  # the Topology rejects smaller values
    hosts = -(-size // on_each)
    is_robin = rank % on_each != local_rank and rank // hosts == local_rank
    cross_rank = rank % hosts if is_robin else rank // on_each
    return Topology(rank, size, local_rank, local_size, cross_rank, hosts, socket.gethostname())
