"""Links through MPI, for ranks on several hosts that mpirun or srun started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distrun.runtime.hosts import Hosts
from distrun.runtime.links import Flat, Links, Ticket
from distrun.runtime.mpi_requests import Requests
from distrun.runtime.neighbourhood import Neighbourhood

if TYPE_CHECKING:
    from mpi4py import MPI


class _Receipt:
    """An array that is to come from a host."""

    __slots__ = ("host", "requests")

    def __init__(self, host: int, requests: list[MPI.Request]) -> None:
        self.host = host
        self.requests = requests

    @property
    def left(self) -> int:
        """How many messages have not been seen to come yet."""
        return sum(map(bool, self.requests))


class MPILinks(Links):
    """Point-to-point messages of MPI.

    Both ends cut an array into the same messages, and those between two ranks arrive in the order in which they were sent.
    """

    def __init__(self, neighbourhood: Neighbourhood, hosts: Hosts) -> None:
        """Collective: all ranks of the job construct it.

        Raises:
            UsageError: these ranks were not started by an MPI launcher, or MPI does not support threads.
            JobAbortedError: a rank was gone before all had.
        """
        self._hood = neighbourhood
        self._hosts = hosts
        self._requests = Requests(neighbourhood, hosts.rank, sum(len(ranks) for ranks in hosts.ranks), "tcp")
        self._sent: list[_Receipt] = []

    def send(self, host: int, array: Flat) -> None:
        self._sent.append(_Receipt(host, self._post(self._requests.send(array, self._hosts.peer(host)))))
