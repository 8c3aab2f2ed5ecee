"""The control planes of a job with a control tree: for rank 0, the other leaders, and the ranks below leaders."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.negotiation.tree import envelopes
from distrun.runtime.negotiation.tree.relay import Relay
from distrun.runtime.negotiation.tree.survey import Survey
from distrun.runtime.operations import waking_clock
from distrun.runtime.transport.control.control_plane import ControlPlane
from distrun.runtime.transport.control.control_tree import ControlTree
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.network import Network


def control_plane(local_group: LocalGroup, tree: ControlTree | None) -> ControlPlane:
    """Return the control plane of a rank. `tree` is None where all ranks have connections with rank 0."""
    if tree is None or (local_group.ranks[0] == 0 and tree.rank):
        return ControlPlane(local_group)
    if tree.rank != tree.leader:
        return LedControlPlane(local_group, is_led=True)
    return RootControlPlane(local_group, tree) if not tree.rank else LeaderControlPlane(local_group, tree)


def controller_of(tree: ControlTree, members: Mapping[int, Iterable[int]], capacity: int) -> Controller:
    """Return the controller of a job with a control tree. See `Controller`."""
    size = tree.size
    sources = [*tree.local_ranks, *(size + child for child in tree.children)]
    tree.subtree(0)  # computes and keeps all subtrees now, so that no operation has to wait for that
    return Controller(
        members, capacity, sources, lambda source: (source,) if source < size else tree.subtree(source - size)
    )


class LedControlPlane(ControlPlane):
    """The control plane of a rank that reaches rank 0 only through its host's leader."""

    def alarm(self, rank: int) -> None:
        self.send(0, envelopes.pack(envelopes.WAKE, rank))
        self._local_group.service_bells[0].force()


class _TreeControlPlane(ControlPlane):
    """The control plane of a rank that has other leaders above or below it."""

    def __init__(self, local_group: LocalGroup, tree: ControlTree) -> None:
        super().__init__(local_group, is_led=True)
        assert self._network is not None
        self._tree = tree
        self._leaders: Network = self._network
        self._leaders.has_leaders = True
        self._children = tree.children

    def _pass_to(self, leader: int, envelope: bytes, is_urgent: bool = False) -> None:
        """Send an envelope to the leader above or below, and wake it if nothing else might."""
        self._leaders.send(leader, envelope)
        if is_urgent:
            self._leaders.alarm(leader)

    def _pass_to_all(self, envelope: bytes) -> bytes:
        """Forward an envelope for all ranks, and return its message, which this rank still has to take in.

        The children come before this host's ranks, since their ranks have the longer way. The first child comes first
        of all, since it has the most hosts below it.
        """
        for child in self._children:
            self._leaders.send(child, envelope)
        message = envelope[envelopes.HEADER :]
        self.send_to_peers(message)
        return message

    def _hand_out(self, ranks: Iterable[int], message: bytes) -> None:
        """Send a message to ranks of this host, except this one."""
        for rank in ranks:
            if rank != self._tree.rank:
                super().send(rank, message)

    def _peer_towards(self, rank: int) -> int:
        return rank if rank in self._places else self._tree.hop(rank)

    def alarm(self, rank: int) -> None:
        if rank in self._places:
            super().alarm(rank)
        else:
            self._pass_to(self._tree.hop(rank), envelopes.pack(envelopes.WAKE, rank), is_urgent=True)

    def trouble_with(self, rank: int) -> str:
        return super().trouble_with(self._peer_towards(rank))

    def hears_from(self, rank: int) -> bool:
        return super().hears_from(self._peer_towards(rank))


class RootControlPlane(_TreeControlPlane):
    """The control plane of rank 0. What a leader's whole subtree has submitted has the source `size` + the leader."""

    def __init__(self, local_group: LocalGroup, tree: ControlTree) -> None:
        super().__init__(local_group, tree)
        # A partial of a function, not a bound method: that would be a reference cycle, and keep this host's shared
        # memory after the end of the world.
        self.survey = self._survey = Survey(tree.children, partial(_ask, self._leaders, tree.children))

    def messages(self) -> Iterator[tuple[int, bytes]]:
        for source, text in super().messages():
            if source in self._places:
                yield source, text
                continue
            letter, number, _, message = envelopes.unpack(text)
            if letter == envelopes.ONE:
                yield number, message
            elif letter == envelopes.SUBTREE:
                yield self._tree.size + number, message
            elif letter == envelopes.FLUSHED:
                self._survey.answered(source, number, waking_clock.now())

    def send(self, rank: int, message: bytes) -> None:
        if rank in self._places:
            super().send(rank, message)
        else:
            self._pass_to(self._tree.hop(rank), envelopes.pack(envelopes.ONE, rank, message), is_urgent=True)

    def send_all(self, ranks: Sequence[int], message: bytes) -> None:
        if len(ranks) == self._tree.size:
            self._pass_to_all(envelopes.pack(envelopes.ALL, 0, message))
            return
        by_child: dict[int, list[int]] = {}
        for rank in ranks:
            if rank not in self._places:
                by_child.setdefault(self._tree.hop(rank), []).append(rank)
        for child, some in by_child.items():
            for envelope in envelopes.pack_some(some, message):
                self._pass_to(child, envelope, is_urgent=True)
        self._hand_out([rank for rank in ranks if rank in self._places], message)


def _ask(network: Network, children: Sequence[int], number: int) -> None:
    """Begin a survey, by asking all children."""
    for child in children:
        network.send(child, envelopes.pack(envelopes.FLUSH, number))
        network.alarm(child)


class LeaderControlPlane(_TreeControlPlane):
    """The control plane of a leader other than rank 0. Whenever it looks for messages, it forwards its subtree's."""

    def __init__(self, local_group: LocalGroup, tree: ControlTree) -> None:
        super().__init__(local_group, tree)
        assert tree.parent is not None
        self._parent = tree.parent
        self._relay = Relay(tree)
        self._for_us: deque[bytes] = deque()
        """Messages for this rank that the other ranks of this host have been sent as well."""
        self._held: list[bytes] = []
        """A message that had no room in some local mailbox. It must not be taken in before it has: a rank that waits
        for this rank inside an operation does not empty its mailbox."""

    def waiting(self) -> bool:
        for box in self._incoming:  # as in `ControlPlane.waiting`
            if box:
                return True
        self._leaders.progress()
        return bool(self._for_us) or (not self.is_stuck and bool(self._leaders.inbox))

    def messages(self) -> Iterator[tuple[int, bytes]]:
        if self.is_stuck:
            self.push()
        if self._held and not self.is_stuck:
            self._for_us.extend(self._held)
            self._held.clear()
        self._take_from_host()
        self._leaders.progress()
        inbox = self._leaders.inbox
        while inbox and not self.is_stuck:
            leader, envelope = inbox.popleft()
            if leader == self._parent:
                self._take_from_above(envelope)
            else:
                self._take_from_below(leader, envelope)
        while self._for_us:
            yield 0, self._for_us.popleft()

    def send(self, rank: int, message: bytes) -> None:
        """Send a message to rank 0."""
        self._pass_up(self._relay.message(self._tree.rank, message, waking_clock.now()))

    def _pass_up(self, up: Iterable[bytes]) -> None:
        for envelope in up:
            self._pass_to(self._parent, envelope)

    def _take_from_host(self) -> None:
        now = waking_clock.now()
        for rank, box in self._inboxes.items():
            while (message := box.get()) is not None:
                if message[:1] == envelopes.WAKE:
                    self._pass_to(self._parent, message, is_urgent=True)
                else:
                    self._pass_up(self._relay.message(rank, message, now))

    def _take_from_below(self, child: int, envelope: bytes) -> None:
        letter, number, _, message = envelopes.unpack(envelope)
        if letter == envelopes.WAKE:
            self._pass_to(self._parent, envelope, is_urgent=True)
        elif letter == envelopes.FLUSHED:
            self._answer(self._relay.surveyed(child, number))
        else:
            source = number + (self._tree.size if letter == envelopes.SUBTREE else 0)
            self._pass_up(self._relay.message(source, message, waking_clock.now()))

    def _take_from_above(self, envelope: bytes) -> None:
        if envelope[:1] == envelopes.ALL:
            message = self._pass_to_all(envelope)
            self._relay.note(message)
            self._keep_for_us(message)
            return
        letter, number, *_ = envelopes.unpack(envelope)
        if letter == envelopes.WAKE:
            if number != self._tree.rank:
                self.alarm(number)
        elif letter == envelopes.FLUSH:
            for child in self._tree.children:
                self._pass_to(child, envelope, is_urgent=True)
            self._take_from_host()
            self._answer(self._relay.survey(number))
        else:
            message, local, children = self._relay.down(envelope)
            for child, packed in children:
                self._pass_to(child, packed, is_urgent=True)
            self._hand_out(local, message)
            if self._tree.rank in local:
                self._keep_for_us(message)

    def _keep_for_us(self, message: bytes) -> None:
        (self._held if self.is_stuck else self._for_us).append(message)

    def _answer(self, up: Iterable[bytes]) -> None:
        for envelope in up:
            self._pass_to(self._parent, envelope, is_urgent=envelope[:1] == envelopes.FLUSHED)

    def complain(self) -> None:
        self._complain_to(self._parent)
