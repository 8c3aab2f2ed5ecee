"""A job whose ranks are negotiators in this process: mailboxes and connections are queues, and nothing is executed."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.negotiation.inquiries import Inquiry
from distrun.runtime.negotiation.negotiator import Negotiator
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.negotiation.tree.control_plane import control_plane, controller_of
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import JOIN, JOIN_NAME, Request
from distrun.runtime.operations.timeouts import Timeouts
from distrun.runtime.transport.control import control_plane as transport
from distrun.runtime.transport.control.control_tree import ControlTree


class Bell:
    """Counts how often it was rung."""

    def __init__(self) -> None:
        self.rings = 0

    def ring(self) -> None:
        self.rings += 1

    force = ring


class QueueMailbox:
    """A mailbox of one process, with room for a few messages."""

    room = 3

    def __init__(self, segment, index: int) -> None:
        self._messages = segment.setdefault(index, deque())

    def put(self, message: bytes) -> bool:
        if len(self._messages) >= self.room:
            return False
        self._messages.append(message)
        return True

    def get(self) -> bytes | None:
        return self._messages.popleft() if self._messages else None

    def __bool__(self) -> bool:
        return bool(self._messages)


class QueueNetwork:
    """The connections of one leader; `others` are those of all ranks."""

    is_sending = False
    is_over = False
    failure = None

    def __init__(self, rank: int, adjacent, others) -> None:
        self.rank = rank
        self.adjacent = adjacent
        self._others = others
        self.inbox: deque[tuple[int, bytes]] = deque()
        self.sent = 0
        self.alarms = 0

    def send(self, rank: int, message: bytes) -> None:
        assert rank in self.adjacent, (self.rank, rank)
        self._others[rank].inbox.append((self.rank, message))
        self.sent += 1

    def alarm(self, rank: int) -> None:
        assert rank in self.adjacent
        self._others[rank].alarms += 1

    def progress(self) -> None:
        pass


class Rank:
    """One rank of the job."""

    def __init__(self, job: Job, number: int, plane, controller, timeouts) -> None:
        self.number = number
        self.operations = PendingOperations(0)
        self.plane = plane
        self.executed: list[str] = []
        """The operations that it has executed, by name or else by "unnamed"."""
        self.errors: dict[str, str] = {}
        self.negotiator = Negotiator(
            *(number, job.size, plane, self.operations, controller, None, timeouts, "<{}>".format, job.sets),
            lambda: job.now,
        )

    def submit(self, name: str | None, count: int = 2, process_set: int = 0, kind: str = "allreduce") -> Handle:
        array = np.zeros(count, np.float32)
        request = Request(kind, name, "float32", ((count,),), process_set=process_set)
        handle = Handle(None, request, [array], [array])
        self.operations.enter(handle)
        return handle

    def join(self) -> Handle:
        handle = Handle(None, Request(JOIN, JOIN_NAME, "int64", ()), [])
        self.operations.enter(handle)
        return handle

    def ask(self, handle: Handle, why: str = "") -> Inquiry:
        inquiry = Inquiry(handle, why)
        self.negotiator.inquiries.new.append(inquiry)
        return inquiry

    def progress(self) -> None:
        self.negotiator.next_look(0.0)  # tries again what a mailbox did not take
        self.negotiator.progress()
        for batch in self.operations.decided:
            self.executed += [handle.request.name or "unnamed" for handle in batch if not handle.stands_in]
        self.operations.decided.clear()
        for handle in self.operations.finished:
            if handle.error is not None:
                self.errors[handle.request.name or "unnamed"] = str(handle.error)
            else:
                self.executed.append(handle.request.name or "unnamed")
        self.operations.finished.clear()


class Job:
    """All ranks of a job."""

    def __init__(self, hosts, fan_out: int, sets=None, timeouts: Timeouts | None = None) -> None:
        """`fan_out` of 0: no tree, on a single host; `sets`: the ranks of process sets by number."""
        if not fan_out:
            hosts = [[rank for ranks in hosts for rank in ranks]]
        self.hosts = tuple(map(tuple, hosts))
        self.size = sum(map(len, self.hosts))
        self.sets = {0: tuple(range(self.size)), **(sets or {})}
        self.now = 100.0
        trees = [ControlTree(self.hosts, rank, fan_out or 1) for rank in range(self.size)]
        self.networks: dict[int, QueueNetwork] = {}
        self.ranks: list[Rank] = []
        for tree in trees:
            adjacent = {*tree.children, *([] if tree.parent is None else [tree.parent])}
            self.networks[tree.rank] = QueueNetwork(tree.rank, adjacent, self.networks)
        segments = {rank: {} for rank in range(self.size)}
        bells = {rank: Bell() for rank in range(self.size)}
        self.service_bells = {rank: Bell() for rank in range(self.size)}
        for tree in trees:
            ranks = tree.local_ranks
            own = ranks.index(tree.rank)
            group = SimpleNamespace(
                ranks=ranks,
                own=own,
                others=[index for index in range(len(ranks)) if index != own],
                segments=[segments[rank] for rank in ranks],
                mine=segments[tree.rank],
                bells=[bells[rank] for rank in ranks],
                service_bells=[self.service_bells[rank] for rank in ranks],
                network=self.networks[tree.rank] if fan_out else None,
            )
            plane = control_plane(group, tree if fan_out else None)
            controller = None
            if not tree.rank:
                controller = controller_of(tree, self.sets, 100) if fan_out else Controller(self.sets, 100)
            self.ranks.append(Rank(self, tree.rank, plane, controller, timeouts or Timeouts(0.0, 0.0)))

    def submit(self, *names: str | None) -> int:
        """Let all ranks submit operations, until nothing is under way; return how many messages leaders have sent."""
        before = sum(network.sent for network in self.networks.values())
        for rank in self.ranks:
            for name in names:
                rank.submit(name)
        self.settle()
        return sum(network.sent for network in self.networks.values()) - before

    def settle(self, *but: int) -> None:
        """Let all ranks make progress until nothing is under way; some may be asleep."""
        for _ in range(20 * self.size):
            for rank in self.ranks:
                if rank.number not in but:
                    rank.progress()
        assert not any(rank.negotiator.has_news() for rank in self.ranks if rank.number not in but)


@pytest.fixture
def job_of(monkeypatch):
    """Return the class `Job`, whose ranks have queues for mailboxes."""
    monkeypatch.setattr(transport, "Mailbox", QueueMailbox)
    return Job
