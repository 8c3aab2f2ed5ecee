"""Links: arrays travel between the ranks of a rail, which are on different hosts.

Sending and receiving are posted and then waited for, so that both directions of all links are busy at once. Between
two ranks arrays arrive in the order in which they were sent, and both ends know what comes: there are no tags.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distrun.errors import BootstrapError, JobAbortedError
from distrun.runtime.transport.connections import Stream
from distrun.runtime.transport.link_health import trouble_with
from distrun.runtime.transport.local_ranks import LocalRanks
from distrun.runtime.transport.network import Network

_MOST = 3  # ranks with whom the connections are looked at

Flat = NDArray[Any]

Peers = Mapping[int, int]
"""The ranks of a rail, without our own, by the number of their host."""


class Ticket(Protocol):
    """An array that is being sent or received."""

    @property
    def left(self) -> int:
        """The bytes or messages that are still to come or to leave; 0 when it is done."""


class Links(ABC):
    """The links of one rank with the ranks of its rail, by host."""

    @abstractmethod
    def send(self, host: int, array: Flat) -> Ticket:
        """Send a contiguous array.

        It must not change before the ticket is done, `flush` has returned, or an answer to it has come.
        """

    @abstractmethod
    def receive(self, host: int, into: Flat) -> Ticket:
        """Receive into a contiguous array."""

    @abstractmethod
    def wait(self, tickets: Sequence[Ticket], what: str) -> None:
        """Return when all are done; `what` names the operation in warnings and errors.

        Raises:
            JobAbortedError: a rank is gone.
            StallError: the stall timeout is over.
        """

    @abstractmethod
    def flush(self, what: str) -> None:
        """Return when nothing that was sent is needed any more; raises as `wait` does."""

    @property
    def are_complete(self) -> bool:
        """Whether there are links with all ranks of the rail, without `connect`; the same on all of them."""
        return True

    def connect(self, hosts: Iterable[int], tell: Callable[[int], Sequence[int]]) -> None:  # noqa: B027
        """Make the links with some hosts that are not there yet; the ranks of the rail call this at the same time.

        `tell` must be called once; it tells the ranks of the rail a number, and returns everybody's, by host.

        Raises:
            JobAbortedError: a peer cannot be reached, has not connected in time, or the job has failed meanwhile.
        """

    def close(self) -> None:  # noqa: B027 - the network closes its own connections
        """Release what the links hold."""


Connect = Callable[[Sequence[int], Callable[[int], Mapping[int, int]]], None]
"""Connects with ranks that are not connected yet. The second argument is to be called once: it tells the rail's ranks
the port at which we listen, and returns everybody's, by rank."""


class TcpLinks(Links):
    """A TCP connection per host; where hosts are many, with those that are needed."""

    def __init__(
        self,
        local_ranks: LocalRanks,
        network: Network,
        peers: Peers,
        streams: Mapping[int, Stream],
        connect: Connect | None = None,
    ) -> None:
        """
        Args:
            local_ranks: the ranks of this host that use links, for waiting.
            peers: the ranks at the other ends.
            streams: the connections by rank.
            connect: makes connections that are missing; None: there are none missing.
        """
        self._local_ranks = local_ranks
        self._network = network
        self._peers = peers
        self._made = streams
        self._make = connect
        self._streams = {host: streams[rank] for host, rank in peers.items() if rank in streams}

    @property
    def are_complete(self) -> bool:
        return self._make is None

    def connect(self, hosts: Iterable[int], tell: Callable[[int], Sequence[int]]) -> None:
        assert self._make is not None

        def tell_rail(port: int) -> Mapping[int, int]:
            ports = tell(port)
            return {rank: ports[host] for host, rank in self._peers.items()}

        ranks = {host: self._peers[host] for host in hosts}
        try:
            self._make(list(ranks.values()), tell_rail)
        except BootstrapError as error:
            raise JobAbortedError(f"hosts cannot be connected: {error}") from None
        self._streams |= {host: self._made[rank] for host, rank in ranks.items()}

    def send(self, host: int, array: Flat) -> Ticket:
        return self._streams[host].send(array.view(np.uint8).data)

    def receive(self, host: int, into: Flat) -> Ticket:
        return self._streams[host].receive(into.view(np.uint8).data)

    def wait(self, tickets: Sequence[Ticket], what: str) -> None:
        for ticket in tickets:
            if ticket.left:
                break
        else:
            return

        def ready() -> bool:
            self._network.progress()
            return not any(ticket.left for ticket in tickets)

        self._local_ranks.wait(ready, lambda: self._waiting_for(what, self._late()))

    def flush(self, what: str) -> None:
        sending = [host for host, stream in self._streams.items() if stream.is_sending]
        if not sending:
            return

        def ready() -> bool:
            self._network.progress()
            return not any(self._streams[host].is_sending for host in sending)

        self._local_ranks.wait(ready, lambda: self._waiting_for(what, sending))

    def _late(self) -> list[int]:
        return [host for host, stream in self._streams.items() if stream.is_receiving or stream.is_sending]

    def _waiting_for(self, what: str, hosts: Iterable[int]) -> str:
        ranks = [self._peers[host] for host in hosts]
        who = ", ".join(self._network.describe(rank) for rank in ranks) or "other hosts"
        said = [trouble_with(self._network, rank) for rank in ranks[:_MOST]]
        return "; ".join([f"{what}, which has begun and waits for {who}", *filter(None, said)])


class LinkMaker(ABC):
    """Makes links: those of the whole job at its start, and those of sets of ranks later."""

    @abstractmethod
    def make(
        self, local_ranks: LocalRanks, peers: Peers, first: Iterable[int], tell: Callable[[int], Sequence[int]]
    ) -> Links:
        """Return the links with the ranks of a rail; its ranks call this at the same time.

        Args:
            local_ranks: the ranks of this host that use links, for waiting.
            peers: the ranks at the other ends.
            first: the hosts to connect with at once, where hosts are many.
            tell: must be called once; tells all ranks of the job a number, and returns everybody's by rank.

        Raises:
            BootstrapError: a peer cannot be reached, has not connected in time, or the job has failed meanwhile.
        """
