"""Links: move arrays between the ranks of a rail, which are on different hosts.

Sends and receives are posted and then waited for, so that both directions of all links are busy at once. Between two
ranks, arrays arrive in the order they were sent, and both ends know which array comes next. So there are no tags.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from distrun.errors import BootstrapError, JobAbortedError
from distrun.runtime.transport.connections import Stream
from distrun.runtime.transport.link_health import trouble_with
from distrun.runtime.transport.local_ranks import LocalRanks
from distrun.runtime.transport.network import Network

_MOST = 3  # ranks whose connections are checked for a report

Flat = NDArray[Any]

Peers = Mapping[int, int]
"""The other ranks of this rank's rail, by the number of their host."""


class Ticket(Protocol):
    """An array that is being sent or received."""

    @property
    def left(self) -> int:
        """The bytes or messages that are still to be received or sent. 0 when it is done."""


class Links(ABC):
    """The links of one rank with the ranks of its rail, by host."""

    are_streams: ClassVar[bool] = False
    """Whether an array that was sent as one may be received in parts."""

    @abstractmethod
    def send(self, host: int, array: Flat) -> Ticket:
        """Send a contiguous `array` to `host`. Do not block.

        It must not change until the ticket is done, `flush` has returned, or the receiver has answered it.
        """

    @abstractmethod
    def receive(self, host: int, into: Flat) -> Ticket:
        """Receive the next array from `host` in the contiguous array `into`. Do not block."""

    @abstractmethod
    def wait(self, tickets: Sequence[Ticket], what: str, left: int = 0) -> None:
        """Return when all `tickets` are done, or have at most `left` bytes left, if these links are streams.

        `what` names the operation in warnings and errors.

        Raises:
            JobAbortedError: a rank is gone.
            StallError: the stall timeout has passed.
        """

    @abstractmethod
    def flush(self, what: str) -> None:
        """Return when all arrays that were sent may be changed. Raises the errors of `wait`."""

    @property
    def are_complete(self) -> bool:
        """Whether all ranks of the rail are linked from the start, without `connect`. It is the same on all ranks."""
        return True

    def connect(self, hosts: Iterable[int], tell: Callable[[int], Sequence[int]]) -> None:  # noqa: B027
        """Make the links with `hosts` that are still missing. All ranks of the rail call this together.

        `tell` must be called exactly once. It sends a number to all ranks of the rail, and returns the numbers of all,
        by host.

        Raises:
            JobAbortedError: a peer cannot be reached, has not connected in time, or the job has failed in the meantime.
        """

    def close(self) -> None:  # noqa: B027 - the network closes its own connections
        """Release what the links hold."""


Connect = Callable[[Sequence[int], Callable[[int], Mapping[int, int]]], None]
"""Connects with the given ranks unless they are connected. Calls its second argument exactly once: this sends the port
that this rank listens on to the ranks of the rail, and returns the ports of all, by rank."""


class TcpLinks(Links):
    """Links over one TCP connection for each host. With many hosts, only the needed ones are connected."""

    are_streams = True

    def __init__(
        self,
        local_ranks: LocalRanks,
        network: Network,
        peers: Peers,
        streams: Mapping[int, Stream],
        connect: Connect | None = None,
    ) -> None:
        """`local_ranks` are the ranks of this host that use links, for waiting. `streams` are the connections with
        `peers` by rank. `connect` adds missing ones, and is None if none is missing."""
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

    def wait(self, tickets: Sequence[Ticket], what: str, left: int = 0) -> None:
        for ticket in tickets:
            if ticket.left > left:
                break
        else:
            return

        def ready() -> bool:
            self._network.progress()
            return not any(ticket.left > left for ticket in tickets)

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
    """Makes links, for the whole job at its start and for process sets later."""

    @abstractmethod
    def make(
        self, local_ranks: LocalRanks, peers: Peers, first: Iterable[int], tell: Callable[[int], Sequence[int]]
    ) -> Links:
        """Return the links of this rank with the ranks of its rail. All ranks of the rail call this together.

        Args:
            local_ranks: the ranks of this host that use links, for waiting.
            peers: the ranks at the other ends.
            first: the hosts to connect with at once if there are many hosts.
            tell: must be called exactly once. Sends a number to all ranks of the job, and returns the numbers of all,
                by rank.

        Raises:
            BootstrapError: a peer cannot be reached, has not connected in time, or the job has failed in the meantime.
        """
