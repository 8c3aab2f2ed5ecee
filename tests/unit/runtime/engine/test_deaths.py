"""A rank that is killed or leaves is named to all that wait for it, whichever it is and wherever the others are.

The ranks are threads with engines of their own, which share memory and have TCP connections as those of real jobs do.
Of a rank that is killed only the end is played: its connections close, and its pidfd becomes readable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import accumulate, combinations, pairwise
from typing import Any

import numpy as np
import pytest
from in_process.calls import DEADLINE, at_once, started
from in_process.connected_ranks import pair_of_sockets

from distrun.errors import JobAbortedError
from distrun.runtime.backends.groups import Groups
from distrun.runtime.engine.engine import ProgressEngine
from distrun.runtime.engine.start import start_engine
from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.negotiation.tree.control_plane import controller_of
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request
from distrun.runtime.operations.timeouts import FOREVER
from distrun.runtime.transport import local_group, network
from distrun.runtime.transport.control.control_tree import control_tree
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.network import Network
from distrun.runtime.transport.rendezvous.protocol import Member
from distrun.runtime.transport.rendezvous.within_host import PeerInfo
from distrun.runtime.transport.shared_memory import peer_process
from distrun.runtime.transport.shared_memory.doorbell import new_bell_fd
from distrun.runtime.transport.shared_memory.segment import Layout, new_segment_fd

pytestmark = pytest.mark.usefixtures("no_descriptors_left")


class Backend:
    """Nothing is ever executed."""

    def __init__(self, size: int) -> None:
        self.size = size

    def close(self) -> None:
        pass


class Job:
    """Ranks on hosts; `fan_out`: of the control tree, if there is one."""

    def __init__(self, counts: Sequence[int], fan_out: int) -> None:
        bounds = [0, *accumulate(counts)]
        self._hosts = tuple(tuple(range(start, stop)) for start, stop in pairwise(bounds))
        self.size = bounds[-1]
        self.host_of = {rank: host for host, ranks in enumerate(self._hosts) for rank in ranks}
        self._trees = [control_tree(self._hosts, rank, fan_out) for rank in range(self.size)]
        self._pidfds = [os.eventfd(0) for _ in range(self.size)]
        networks = self._networks() if len(counts) > 1 else [None] * self.size
        self.groups: list[LocalGroup] = []
        for ranks in self._hosts:
            memory = Layout(len(ranks)).heap + (1 << 20)
            shown = [(new_segment_fd(memory), new_bell_fd(), new_bell_fd(), self._pidfds[rank]) for rank in ranks]
            for own, rank in enumerate(ranks):
                peers = [PeerInfo(100 + ranks[index], *map(os.dup, fds)) for index, fds in enumerate(shown)]
                self.groups.append(LocalGroup(own, ranks, peers, FOREVER, networks[rank]))
            for fds in shown:
                for fd in fds[:-1]:
                    os.close(fd)
        self.engines = at_once(self._engine, range(self.size))  # the ranks of a host meet
        self.heard: dict[int, str] = {}
        """The error of each rank whose operation has failed."""
        self._waiting: dict[int, Future[None]] = {}

    def _networks(self) -> list[Network]:
        members = [
            Member(rank, f"h{host}", f"host{host}", 100 + rank, "127.0.0.1", 1) for rank, host in self.host_of.items()
        ]
        ends: list[tuple[dict[int, Any], dict[int, Any]]] = [({}, {}) for _ in members]
        for one, other in combinations(range(self.size), 2):
            if self._are_connected(one, other):
                for kind in range(2):
                    ends[one][kind][other], ends[other][kind][one] = pair_of_sockets()
        return [Network(rank, members, *both) for rank, both in enumerate(ends)]

    def _are_connected(self, one: int, other: int) -> bool:
        tree = self._trees[one]
        return other in tree.children if tree else one == 0 and self.host_of[other] != 0

    def _engine(self, rank: int) -> ProgressEngine:
        controller, everybody = None, {0: tuple(range(self.size))}
        if rank == 0:
            controller = controller_of(self._trees[0], everybody, 10) if self._trees[0] else Controller(everybody, 10)
        return start_engine(self.groups[rank], Groups(Backend(self.size)), controller, tree=self._trees[rank])

    def wait_in(self, rank: int) -> None:
        """Have a rank wait for all others."""
        array = np.ones(3, np.float32)
        handle = Handle(self.engines[rank], Request("allreduce", "first", "float32", ((3,),)), [array], [array])

        def run() -> None:
            try:
                self.engines[rank].run(handle)
                handle.wait()
            except JobAbortedError as error:
                self.heard[rank] = str(error)

        self._waiting[rank] = started(run)

    def await_waiting(self) -> None:
        """Wait until all that wait have their error."""
        for rank, waiting in self._waiting.items():
            waiting.result(DEADLINE)
            assert rank in self.heard, f"rank {rank} is done"

    def kill(self, rank: int) -> None:
        """End a rank without a word."""
        engine, group = self.engines[rank], self.groups[rank]
        engine._state.is_leaving = True
        group.service_bells[group.own].force()
        engine._progress_thread.join()
        if group.network is not None:
            group.network.close()
        os.eventfd_write(self._pidfds[rank], 1)

    def leave(self, *ranks: int) -> None:
        """Let ranks leave."""
        at_once(lambda rank: self.engines[rank].shutdown(), ranks)

    def close(self, victim: int, is_killed: bool) -> None:
        """Let all ranks leave but the victim, which has."""
        if is_killed:
            self.engines[victim]._negotiator.close()
            self.groups[victim].close()
        self.leave(*{*range(self.size)} - {victim})
        for fd in self._pidfds:
            os.close(fd)


@pytest.fixture
def make_job(no_descriptors_left, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Job]]:
    """Makes jobs. A rank that has found a connection closed does not wait for long to be told why."""
    monkeypatch.setattr(peer_process, "ending", lambda _: "was killed by SIGKILL")
    monkeypatch.setattr(local_group, "REASON_TIMEOUT", 0.01)
    monkeypatch.setattr(network, "REASON_TIMEOUT", 0.01)
    return Job


LAYOUTS = [
    *(((4,), 0), ((1, 1), 0), ((2, 2), 0), ((1, 2), 0), ((2, 1), 0), ((1, 1, 1), 0)),
    *(((1, 2, 1), 1), ((1, 3, 1), 1), ((1, 1, 1, 1), 2), ((2, 1, 2, 1), 1)),
]
"""Ranks of each host, and the fan-out of the tree."""
EVERYBODY_ELSE = [(*layout, victim, ()) for layout in LAYOUTS for victim in range(sum(layout[0]))]
SOME = [
    ((1, 3, 1), 1, 3, (1, 2)),  # the leader of the victim's host is busy
    ((1, 3, 1), 1, 3, (0, 1)),
    ((1, 1, 1, 1), 2, 3, (0, 1)),  # all leaders on the way
    ((1, 1, 1, 1), 1, 1, (0, 2)),  # a leader itself, and all next to it
    ((1, 2, 1), 1, 3, (0, 1)),  # the leader of one that waits, and all on the way
    ((2, 1), 0, 1, (0,)),  # there is no tree, but rank 0 speaks for its host
]
"""The victim, and who is busy with its own code and does not wait."""


@pytest.mark.parametrize("how", ["is killed", "leaves"])
@pytest.mark.parametrize(("counts", "fan_out", "victim", "busy"), [*EVERYBODY_ELSE, *SOME])
def test_all_that_wait_for_a_rank_hear_what_has_become_of_it(make_job, counts, fan_out, victim, busy, how):
    job = make_job(counts, fan_out)
    others = {*range(job.size)} - {victim}
    for rank in others - {*busy}:
        job.wait_in(rank)
    if how == "is killed":
        job.kill(victim)
    else:
        job.leave(victim)
    job.await_waiting()
    for rank in busy:  # they hear of it when they call
        job.wait_in(rank)
    job.await_waiting()
    fate = (
        "(was killed by SIGKILL|is gone: its connection (was closed|broke))"
        if how == "is killed"
        else "has left: it called"
    )
    named = rf"rank {victim} \(process {100 + victim}( on host host{job.host_of[victim]})?\) {fate}"
    for rank in others:
        assert re.match(rf"(allreduce 'first': )?(.* failed: )?(allreduce 'first': )?{named}", job.heard[rank]), (
            job.heard
        )
    job.close(victim, how == "is killed")
