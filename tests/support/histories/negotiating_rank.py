"""A negotiator by itself: a test writes and reads its messages, and nothing is executed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial

import numpy as np

from distrun.runtime.negotiation import messages
from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.negotiation.decisions import Define
from distrun.runtime.negotiation.eager.piggyback import Piggyback
from distrun.runtime.negotiation.inquiries import Inquiry
from distrun.runtime.negotiation.messages import pack_decision
from distrun.runtime.negotiation.negotiator import Negotiator
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request
from distrun.runtime.operations.timeouts import Timeouts
from distrun.runtime.transport.network import DirectLink
from distrun.runtime.transport.shared_memory.swap import ANSWERED, SENT, SwapFunction


class FakeControlPlane:
    """Messages that the test writes and reads, in place of mailboxes and connections."""

    is_stuck = False
    is_sending = False
    speaks_for_host = False
    survey = None
    lost: str | None = None
    pushes = 0
    room = float("inf")  # messages
    looks = 1

    def __init__(self, is_across_hosts: bool, can_swap: bool = False) -> None:
        self.is_across_hosts = is_across_hosts
        self.can_swap = can_swap
        self.inbox: deque[tuple[int, bytes]] = deque()
        self.sent: list[tuple[int, bytes]] = []
        self.unsent: deque[tuple[int, bytes]] = deque()
        self.alarmed: list[int] = []

    def direct_link(self, rank: int) -> DirectLink:
        return DirectLink(lambda: self.look(), self.inbox, partial(self._prepare, rank) if self.can_swap else None)

    def _prepare(self, rank: int, header: bytes, count: int, dtype: np.dtype, factor: float) -> SwapFunction:
        def swap(array: np.ndarray, result: np.ndarray, looks: int) -> int:
            message = header + array.tobytes()
            self.send(rank, message)
            self.look()
            if not self.inbox or len(answer := self.inbox[0][1]) != len(message) or answer[: len(header)] != header:
                return SENT
            self.inbox.popleft()
            result[:] = array + np.frombuffer(answer, dtype, offset=len(header))  # as FakeHierarchicalBackend does
            return ANSWERED

        return swap

    def look(self) -> None:
        """Called by a rank that looks for what has come. Tests replace it."""

    def waiting(self) -> bool:
        return bool(self.inbox)

    def messages(self) -> Iterator[tuple[int, bytes]]:
        while self.inbox:
            yield self.inbox.popleft()

    def send(self, rank: int, message: bytes) -> None:
        self.unsent.append((rank, message))
        self._fill()

    def send_all(self, ranks, message: bytes) -> None:
        for rank in ranks:
            if rank != 0:
                self.send(rank, message)

    def _fill(self) -> None:
        while self.unsent and self.room > 0:
            self.sent.append(self.unsent.popleft())
            self.room -= 1
        self.is_stuck = bool(self.unsent)

    def alarm(self, rank: int) -> None:
        self.alarmed.append(rank)

    def push(self) -> None:
        self.pushes += 1
        self._fill()

    def trouble(self, is_undecided: bool) -> str | None:
        return self.lost if is_undecided else None


class FakeHierarchicalBackend:
    """Adds up what ranks of several hosts have sent."""

    def __init__(self, size: int) -> None:
        self.size = size

    def wire_of(self, request: Request) -> str:
        return ""

    def combine(self, sources, how, result):
        result[:] = sum(sources)


class Rank:
    """A negotiator with its operations, a clock, and nobody else."""

    def __init__(
        self, rank: int, size: int = 2, *, hosts: bool = False, offers: bool = False, swaps: bool = False, timeouts=None
    ) -> None:
        self.now = 1000.0
        self.rank = rank
        self.operations = PendingOperations(1 << 20)
        self.control = FakeControlPlane(hosts, swaps)
        self.negotiator = Negotiator(
            rank,
            size,
            self.control,
            self.operations,
            Controller({0: range(size)}) if rank == 0 else None,
            Piggyback(FakeHierarchicalBackend(size), offers) if hosts else None,
            timeouts or Timeouts(0.0, 0.0),
            "<{}>".format,
            {0: range(size), 7: (0, 1), 8: (1, 2)},
            lambda: self.now,
        )

    def submit(self, name: str | None, value: float = 1.0, count: int = 2) -> Handle:
        array = np.full(count, value, np.float32)
        handle = Handle(None, Request("allreduce", name, "float32", ((count,),)), [array], [array])
        self.operations.enter(handle)
        return handle

    def hear(self, rank: int, *texts: bytes) -> None:
        self.control.inbox.extend((rank, text) for text in texts)
        self.negotiator.progress()

    def ask(self, handle: Handle, why: str = "") -> Inquiry:
        inquiry = Inquiry(handle, why)
        self.negotiator.inquiries.new.append(inquiry)
        assert self.negotiator.has_news()
        self.negotiator.progress()
        return inquiry

    def sent(self) -> list[tuple[int, bytes]]:
        """The messages since the last time."""
        sent, self.control.sent = self.control.sent, []
        return sent

    def posted(self) -> list[tuple[int, bytes]]:
        """The messages since the last time, after it has made progress."""
        self.negotiator.progress()
        return self.sent()

    def decided(self) -> list[list[Handle]]:
        """The batches that are to be executed now, as if they were."""
        batches = list(self.operations.decided)
        self.operations.decided.clear()
        return batches

    def finished(self) -> list[Handle]:
        """The operations whose results or errors have come since the last time."""
        finished = [*self.operations.finished]
        self.operations.finished.clear()
        return finished

    def learn(self, *handles: Handle) -> None:
        """Have all ranks execute these for the first time: their cache ids are 0, 1, ..."""
        self.negotiator.progress()
        for cache_id, handle in enumerate(handles):
            if self.rank == 0:
                for rank in self.negotiator._ranks[1:]:
                    self.hear(rank, messages.FULL_REQUEST + handle.request.encode(""))
            else:
                self.hear(0, pack_decision(Define(cache_id, handle.request)))
        assert self.decided() == [[handle] for handle in handles]
        self.sent()
