"""The control plane: small messages between the ranks and the coordinator, which is rank 0.

Within a host they travel through mailboxes in shared memory. What does not fit a mailbox waits here, in order, so that
sending never blocks: the reader may be waiting for us in a collective.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from distrun.runtime.mailbox import Mailbox
from distrun.runtime.neighbourhood import Neighbourhood


class Control:
    """The messages of one rank: the coordinator's to and from all others, any other's to and from the coordinator."""

    def __init__(self, neighbourhood: Neighbourhood) -> None:
        self._hood = neighbourhood
        coordinator = neighbourhood.segments[0]
        self.is_coordinator = neighbourhood.own == 0
        self._unsent: dict[int, deque[bytes]] = {}
        if self.is_coordinator:
            self._inboxes = {rank: Mailbox(neighbourhood.segments[rank], 0) for rank in neighbourhood.others}
            self._outboxes = {rank: Mailbox(coordinator, 1 + rank) for rank in neighbourhood.others}
        else:
            self._inboxes = {0: Mailbox(coordinator, 1 + neighbourhood.own)}
            self._outboxes = {0: Mailbox(neighbourhood.mine, 0)}
        self._incoming = list(self._inboxes.values())

    def waiting(self) -> bool:
        """Whether a message has come that was not taken yet."""
        for box in self._incoming:  # noqa: SIM110 - any() takes twice the time, and this runs while spinning
            if box:
                return True
        return False

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Take the messages that have come, with their senders."""
        for rank, box in self._inboxes.items():
            while (message := box.get()) is not None:
                yield rank, message

    def send(self, rank: int, message: bytes) -> None:
        """Send a message; never blocks."""
        unsent = self._unsent.get(rank)
        if unsent:
            unsent.append(message)
            self.push()
        elif self._outboxes[rank].put(message):
            self._hood.bells[rank].ring()
        else:
            self._unsent.setdefault(rank, deque()).append(message)

    @property
    def is_stuck(self) -> bool:
        """Whether something is left to send; nothing will tell when there is room, so try `push` now and then."""
        return any(self._unsent.values())

    def push(self) -> None:
        """Send what did not fit before."""
        for rank, unsent in self._unsent.items():
            while unsent and self._outboxes[rank].put(unsent[0]):
                unsent.popleft()
                self._hood.bells[rank].ring()
