"""Links through MPI, for ranks on several hosts that mpirun or srun started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from distrun.runtime.transport.links import Flat, LinkMaker, Links, Peers, Ticket
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.local_ranks import LocalRanks
from distrun.runtime.transport.mpi.requests import WINDOW, Requests
from distrun.runtime.transport.network import Network

if TYPE_CHECKING:
    from mpi4py import MPI


class _Transfer:
    """An array that is being sent to a host or received from it."""

    __slots__ = ("host", "requests")

    def __init__(self, host: int, requests: list[MPI.Request]) -> None:
        self.host = host
        self.requests = requests

    @property
    def left(self) -> int:
        """The number of its messages that are not yet known to be complete."""
        return sum(map(bool, self.requests))


class MpiLinks(Links):
    """Links by point-to-point messages of MPI.

    Both ends divide an array into the same messages, and messages between two ranks arrive in the order they were sent.
    """

    def __init__(self, requests: Requests, network: Network, peers: Peers) -> None:
        """`peers` are the ranks at the other ends, by host, numbered as in MPI."""
        self._requests = requests
        self._network = network
        self._peers = peers
        self._sent: list[_Transfer] = []

    def send(self, host: int, array: Flat) -> Ticket:
        requests = self._requests.post(self._requests.send(array, self._peers[host]))
        if len(self._sent) > 2 * WINDOW:
            self._sent = [transfer for transfer in self._sent if transfer.left]
        self._sent.append(_Transfer(host, requests))
        return self._sent[-1]

    def receive(self, host: int, into: Flat) -> Ticket:
        return _Transfer(host, self._requests.post(self._requests.receive(into, self._peers[host])))

    def wait(self, tickets: Sequence[Ticket], what: str, left: int = 0) -> None:
        self._complete([ticket for ticket in tickets if isinstance(ticket, _Transfer)], what)

    def flush(self, what: str) -> None:
        self._complete(self._sent, what)
        self._sent.clear()

    def _complete(self, transfers: Sequence[_Transfer], what: str) -> None:
        requests = [request for transfer in transfers for request in transfer.requests]
        self._requests.complete(requests, lambda: self._waiting_for(transfers, what))

    def _waiting_for(self, transfers: Sequence[_Transfer], what: str) -> str:
        late = dict.fromkeys(transfer.host for transfer in transfers if transfer.left)
        ranks = ", ".join(self._network.describe(self._peers[host]) for host in late)
        return f"{what}, which has begun and waits in MPI for {ranks or 'other hosts'}"

    def close(self) -> None:
        self._requests.close()


class MpiLinkMaker(LinkMaker):
    """Makes links, all on one communicator of all ranks of the job."""

    def __init__(self, local_group: LocalGroup, network: Network, rank: int, size: int) -> None:
        """Collective: all ranks of the job construct it together.

        Raises:
            UsageError: these ranks were not started by an MPI launcher, or MPI does not support threads.
            JobAbortedError: a rank was gone before all had constructed it.
        """
        self._network = network
        self._requests = Requests(local_group, rank, size, "tcp")

    def make(
        self, local_ranks: LocalRanks, peers: Peers, first: Iterable[int], tell: Callable[[int], Sequence[int]]
    ) -> Links:
        tell(0)
        return MpiLinks(self._requests.of_set(local_ranks), self._network, peers)

    def links(self, peers: Peers) -> MpiLinks:
        """Return the links of the whole job. Closing them frees the communicator."""
        return MpiLinks(self._requests, self._network, peers)
