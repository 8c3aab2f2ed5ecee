"""The control plane: small messages between the ranks and the coordinator, which is rank 0.

On rank 0's host, they go through mailboxes in shared memory, to other hosts over TCP. A message that does not fit waits
here or in the channel, in order, so sending never blocks: the reader may itself be waiting for this rank in a
collective operation. With many hosts, ranks have mailboxes with the first rank of their host, which passes on the
messages in both directions (see `negotiation.tree`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from distrun.runtime.transport import link_health
from distrun.runtime.transport.local_group import FEW_LOOKS, NETWORK_SPINS, LocalGroup
from distrun.runtime.transport.network import DirectLink
from distrun.runtime.transport.shared_memory.mailbox import LARGEST, Mailbox
from distrun.runtime.transport.shared_memory.swap import Swap, can_swap

LARGEST_MESSAGE = LARGEST
"""Bytes of the largest message."""
DEPARTURE = b"B"
"""The letter of a message to ranks without connections: a rank of another host has left. A sentence follows."""


class Survey(Protocol):
    """The coordinator's request to the leaders of hosts to report everything that they have not yet passed on."""

    deadline: float

    def begin(self, now: float) -> None:
        """Send the request, unless answers are still expected."""
        ...

    def is_under_way(self, now: float) -> bool:
        """Return whether answers are still expected."""
        ...

    def is_fresh(self, now: float) -> bool:
        """Return whether it has ended recently."""
        ...


class ControlPlane:
    """Sends and receives the messages of one rank: between the coordinator and all others, or another rank and it."""

    survey: Survey | None = None
    """Set on the coordinator if leaders of hosts pass on what their ranks submit."""

    def __init__(self, local_group: LocalGroup, is_led: bool = False) -> None:
        """`is_led`: the ranks of this host have mailboxes with its first rank even if that is not rank 0."""
        self._local_group = local_group
        self._network = local_group.network
        self.is_across_hosts = self._network is not None
        self._own = local_group.ranks[local_group.own]
        self._places = {rank: index for index, rank in enumerate(local_group.ranks)}
        self._indices = {**self._places, 0: 0}
        """The local index for messages to a rank. Messages to rank 0 go to the first rank of the host."""
        self._inboxes: dict[int, Mailbox] = {}
        self._outboxes: dict[int, Mailbox] = {}
        self._unsent: dict[int, deque[bytes]] = {}
        self.is_stuck = False
        """Whether a mailbox was full. There is no event when it has room again, so call `push` from time to time."""
        if is_led or local_group.ranks[0] == 0:
            self._open_mailboxes()
        self._looked: deque[tuple[int, bytes]] = deque()
        """Messages of mailboxes that a `DirectLink` has received."""
        self._incoming = list(self._inboxes.values())
        bells = local_group.bells
        self._peers = [(rank, box, bells[self._indices[rank]]) for rank, box in self._outboxes.items()]
        self.speaks_for_host = self.is_across_hosts and local_group.own == 0 and bool(self._inboxes)
        """Whether this rank reports the departure of its local peers to other hosts, as they are not connected with
        rank 0."""
        self._missed = 0
        self._has_told = False
        self._passed_on: set[int] = set()

    def _open_mailboxes(self) -> None:
        local_group = self._local_group
        coordinator = local_group.segments[0]
        if local_group.own == 0:
            for index in local_group.others:
                self._inboxes[local_group.ranks[index]] = Mailbox(local_group.segments[index], 0)
                self._outboxes[local_group.ranks[index]] = Mailbox(coordinator, 1 + index)
        else:
            self._inboxes[0] = Mailbox(coordinator, 1 + local_group.own)
            self._outboxes[0] = Mailbox(local_group.mine, 0)

    def waiting(self) -> bool:
        """Return whether there is a received message that has not been taken yet."""
        if self._looked:
            return True
        for box in self._incoming:  # any() takes twice the time, and this runs while spinning
            if box:
                return True
        if self._network is not None:
            self._network.progress()
            return bool(self._network.inbox)
        return False

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Yield and remove the received messages, with their senders' ranks."""
        while self._looked:
            yield self._looked.popleft()
        for rank, box in self._inboxes.items():
            while (message := box.get()) is not None:
                yield rank, message
        if self._network is not None:
            self._network.progress()
            inbox = self._network.inbox
            while inbox:
                yield inbox.popleft()

    def send(self, rank: int, message: bytes) -> None:
        """Send `message` to `rank` without blocking."""
        if rank not in self._outboxes:
            assert self._network is not None
            self._network.send(rank, message)
            return
        unsent = self._unsent.get(rank)
        if unsent:
            unsent.append(message)
            self.push()
        elif self._outboxes[rank].put(message):
            self._local_group.bells[self._indices[rank]].ring()
        else:
            self._unsent.setdefault(rank, deque()).append(message)
            self.is_stuck = True

    def send_to_peers(self, message: bytes) -> None:
        """Send `message` to all ranks of this host that have mailboxes with this rank."""
        for rank, box, bell in self._peers:
            if not self.is_stuck and box.put(message):
                bell.ring()
            else:
                ControlPlane.send(self, rank, message)

    def send_all(self, ranks: Sequence[int], message: bytes) -> None:
        """Send `message` to all `ranks` except this one."""
        own = self._own
        for rank in ranks:
            if rank != own:
                self.send(rank, message)

    def alarm(self, rank: int) -> None:
        """Wake the progress thread of `rank`, so that it receives its messages even if no other thread there waits."""
        if rank in self._places:
            self._local_group.service_bells[self._places[rank]].force()
        elif self._network is not None:
            self._network.alarm(rank)

    def push(self) -> None:
        """Send messages that did not fit into a mailbox before."""
        for rank, unsent in self._unsent.items():
            while unsent and self._outboxes[rank].put(unsent[0]):
                unsent.popleft()
                self._local_group.bells[self._indices[rank]].ring()
        self.is_stuck = any(self._unsent.values())

    def tell_departure(self) -> None:
        """Tell the local peers without connections that a rank of another host has left.

        Only the first departure is reported: it already ends every wait for a decision.
        """
        network = self._network
        if network is None or not network.is_over or self._has_told or (why := network.departure) is None:
            return
        self._has_told = True
        for rank in self._inboxes:
            if self._local_group.departure_of(rank) is None:
                ControlPlane.send(self, rank, DEPARTURE + why.encode())

    def note_departure(self, message: bytes) -> None:
        """Handle a message of `tell_departure`: record that a rank of another host has left."""
        if self._network is not None:
            self._network.note_departure(message[1:].decode(errors="replace"))

    def direct_link(self, rank: int) -> DirectLink:
        """Return the way of messages from `rank`."""
        if rank not in self._inboxes:
            assert self._network is not None
            return self._network.direct_link(rank)
        box, inbox = self._inboxes[rank], self._looked

        def look() -> None:
            message = box.get()
            if message is not None:
                inbox.append((rank, message))

        if not can_swap():
            return DirectLink(look, inbox)
        return DirectLink(
            look, inbox, Swap(self._outboxes[rank], box, self._local_group.bells[self._indices[rank]]).prepare
        )

    @property
    def looks(self) -> int:
        """How often to check a direct link before anything else is done."""
        group = self._local_group
        return NETWORK_SPINS if group.may_spin and group.spare_cores >= 0 else FEW_LOOKS

    # Several hosts ----------------------------------------------------------------------------------------------------

    @property
    def is_sending(self) -> bool:
        """Whether messages to another host are pending."""
        return self._network is not None and self._network.is_sending

    def hear_alarms(self) -> bool:
        """Return whether, since the last call, an alarm has arrived, or a peer that this rank reports on has left or
        failed.

        Only the progress thread calls it.
        """
        is_called = self._network is not None and self._network.hear_alarms()
        if self.speaks_for_host and self._missed != (missing := self._local_group.missing):
            self._missed, is_called = missing, True
        return is_called

    def report_lost_ranks(self) -> str | None:
        """Tell the other hosts which peers have left. Return why the job cannot continue, if one has failed or
        ended."""
        if not self.speaks_for_host or self._network is None:
            return None
        for rank in self._inboxes:
            if rank not in self._passed_on and (why := self._local_group.departure_of(rank)) is not None:
                self._passed_on.add(rank)
                self._network.pass_on_departure(rank, why)
        return self._local_group.lost_rank()

    def trouble_with(self, rank: int) -> str:
        """Return a sentence about what TCP reports to be wrong on the path to or from `rank`, or "" if nothing is."""
        if self._network is None or rank in self._places:
            return ""
        if rank in self._network.complaints:
            return link_health.unheard(self._network, rank)
        return link_health.trouble_with(self._network, rank)

    def troubles(self) -> list[str]:
        """Return sentences as of `trouble_with` about all connections of this rank."""
        return [] if self._network is None else link_health.troubles(self._network)

    def hears_from(self, rank: int) -> bool:
        """Return whether `rank` is on another host, which has recently acknowledged everything that was sent to it."""
        return self._network is not None and rank not in self._places and link_health.answers(self._network, rank)

    def complain(self) -> None:
        """Send an alarm to the coordinator on another host if this rank's messages to it are not acknowledged."""
        if 0 not in self._places:
            self._complain_to(0)

    def _complain_to(self, rank: int) -> None:
        if self._network is not None and link_health.is_unheard(self._network, rank):
            self._network.alarm(rank, is_complaint=True)

    def trouble(self, is_undecided: bool) -> str | None:
        """Return why the job cannot continue, or None.

        The reason is that a rank of another host has failed, or has left while this rank waits for a decision.
        """
        network = self._network
        if network is None or not network.is_over:
            return None
        if network.failure is not None or not is_undecided or self.waiting():
            return network.failure
        return network.departure
