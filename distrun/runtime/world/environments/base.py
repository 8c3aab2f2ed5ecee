"""The interface of an environment. Its methods are documented here and nowhere else."""

from __future__ import annotations

import abc
import hashlib
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
"""The number of ports that are tried where a port is only guessed to be free."""
_FIRST_PORT, _PORT_RANGE = 30000, 31000  # those in which servers of users are rare; 60999 is the last


class Environment(abc.ABC):
    """A way to have been started, read from the environment variables that the launcher left.

    Reading is all it does: no connection is made, nothing is imported, and `environ` is not changed.
    """

    name: str
    """The environment's name in messages."""
    is_mpi: ClassVar[bool] = False
    """Whether it starts ranks of an MPI job, which may therefore use MPI."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    @classmethod
    @abc.abstractmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        """Whether `environ` was made by this launcher. It may still be incomplete: `topology` says so."""

    @abc.abstractmethod
    def topology(self) -> Topology:
        """Return this rank's place in the job.

        Raises:
            UsageError: a variable is missing, is not a whole number, or contradicts another one.
        """

    @abc.abstractmethod
    def job_name(self) -> str:
        """Return a text that the ranks of this job on this host share, and no other job on this host has at the same
        time.

        Local ranks meet under a name derived from it. It may differ between hosts, it is not a secret, and having it
        proves nothing. Where a launcher keeps one agent per host the agent is in it, so that two agents of a job
        that really share a machine stay apart, as their local ranks do.
        """

    def generation(self) -> int:
        """Return which world of the job this is, counted from 1; 0: the launcher is still to tell."""
        return 1

    def slot(self) -> int:
        """Return the place on its host that this process has for life: its local rank, unless that may change."""
        return self.topology().local_rank

    def job_key(self) -> bytes | None:
        """Return the secret that the ranks of the job share; None where the launcher gives none."""
        return None

    def endpoint(self) -> RendezvousEndpoint | None:
        """Return where the ranks of several hosts meet; None: MPI has to tell. Asked only when there are several.

        Raises:
            UsageError: a variable that would say so is missing or wrong.
        """
        return None

    def _given_key(self) -> bytes | None:
        """Return the key that the user has given all ranks; None when there is none.

        Raises:
            UsageError: it is so short that it might be guessed.
        """
        return Settings.of(self._environ).key

    def _needed_key(self) -> bytes:
        """Return the key that the user has given all ranks, whose launcher gives none.

        Raises:
            UsageError: there is none either.
        """
        if (key := self._given_key()) is None:
            raise UsageError(
                f"the job has several hosts and {self.name} gives its ranks no secret to know one another by: set "
                f"{KEY} to the same text on all of them, as from `openssl rand -hex 32`, or start the script with "
                "`distrun`"
            )
        return key

    def _endpoint_at_master(self) -> RendezvousEndpoint:
        """Return an endpoint near the master's port, for ranks whose launcher says where rank 0 is and gives no secret.

        Raises:
            UsageError: the user has not given a secret either.
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
    """Return the ports that all ranks of a job try; those of another job are most likely others."""
    digest = hashlib.sha256(job.encode()).digest()
    return [
        _FIRST_PORT + int.from_bytes(digest[4 * index : 4 * index + 4], "big") % _PORT_RANGE for index in range(PORTS)
    ]


def even_cross(rank: int, size: int, local_rank: int, local_size: int) -> tuple[int, int]:
    """Return a provisional (cross_rank, cross_size), for a launcher that does not tell, as if all hosts were like this
    one.

    Ranks go to hosts in blocks (`--map-by slot`: 0 1 | 2 3) or round robin (`--map-by node`: 0 2 | 1 3). A single rank
    cannot always tell the two apart (rank 2, local rank 0, of three hosts with two ranks each fits both; blocks are the
    default of every MPI), nor can it see that another host has a different number. With one host the answer is certain;
    with several, `init` replaces it by the true one when the ranks have met.
    """
    local_size = max(local_size, 1)  # a Topology refuses less
    hosts = -(-size // local_size)
    is_robin = rank % local_size != local_rank and rank // hosts == local_rank
    return (rank % hosts if is_robin else rank // local_size), hosts
