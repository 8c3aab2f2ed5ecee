"""The local group: all ranks of one host, and waiting for one another."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Sequence
from functools import partial

from distrun.contract.elastic.interruption import Interruption, stop_descriptors
from distrun.errors import JobAbortedError
from distrun.runtime.operations import waking_clock
from distrun.runtime.operations.timeouts import NUDGE_AFTER, Timeouts, WaitTimer
from distrun.runtime.transport.local_ranks import LocalRanks
from distrun.runtime.transport.network import REASON_TIMEOUT, Network
from distrun.runtime.transport.rendezvous.within_host import LocalRendezvous, PeerInfo
from distrun.runtime.transport.shared_memory import peer_process
from distrun.runtime.transport.shared_memory.doorbell import Doorbell, Sleeper
from distrun.runtime.transport.shared_memory.segment import (
    EPOCH,
    FAILED,
    LEFT,
    RUNNING,
    SERVICE_SLEEPING,
    SLEEPING,
    STATE,
    WANTED,
    Heap,
    Segment,
)
from distrun.tracing import recording

SPINS = 1000
"""Looks before sleeping, some tens of microseconds: a wake-up costs about as much, so a wait costs at most twice its
length."""
_SLEEPS_PER_TIMEOUT = 20  # parts that a stall timeout is slept in
NETWORK_SPINS = 300
"""Looks before sleeping where each asks the kernel for what has come over the network."""
SHORTEST_NAP = 0.005
"""Seconds that a thread sleeps at least which looks after the network, for another may be at it."""


def _usable_cores(peers: Sequence[PeerInfo]) -> int:
    """The cores that the ranks together may run on: mpirun and srun bind each rank to a few."""
    cores = set(os.sched_getaffinity(0))
    for peer_info in peers:
        with contextlib.suppress(OSError):
            cores |= os.sched_getaffinity(peer_info.pid)
    return len(cores)


def _bells(fds: Sequence[int], segments: Sequence[Segment], word: int) -> list[Doorbell]:
    return [Doorbell(fd, segment.words, word) for fd, segment in zip(fds, segments, strict=True)]


class LocalGroup(LocalRanks):
    """The ranks of one host as one of them sees them: its local peers."""

    def __init__(
        self,
        own: int,
        ranks: Sequence[int],
        peers: Sequence[PeerInfo],
        timeouts: Timeouts,
        network: Network | None = None,
        clock: Callable[[], float] = waking_clock.now,
        interruption: Interruption | None = None,
        rendezvous: LocalRendezvous | None = None,
    ) -> None:
        """
        Args:
            network: given where the job has more hosts than this one.
            interruption: what may end all waits.
            meeting: where these ranks have met; None in tests.
            clock: the time in seconds, by which waits are timed.
        """
        size = os.fstat(peers[0].segment).st_size
        segments = [Segment(peer_info.segment, size, len(peers)) for peer_info in peers]
        bells = _bells([p.bell for p in peers], segments, SLEEPING)
        super().__init__(own, ranks, segments, Heap(segments[own]), bells, timeouts, network)
        layout = self.mine.layout
        self._open([segment.words for segment in segments], EPOCH, layout.lines // 8, layout.stage)
        self.rendezvous = rendezvous
        self.watched_since = time.monotonic()
        """The end of the last stretch of a wait of which the waking clock knows whether we were stopped in it."""
        self._clock = clock
        # Short enough for `waking_clock` to see most of the time in which we were stopped.
        self._longest_sleep = timeouts.timeout / _SLEEPS_PER_TIMEOUT or float("inf")
        self._peers = peers
        self.service_bells = _bells([p.service_bell for p in peers], segments, SERVICE_SLEEPING)
        self.bell = self.bells[own]
        self._pidfds = {peers[index].pidfd: index for index in self.others}
        self._interruption = interruption
        others = (*([] if network is None else [network.fd]), *stop_descriptors(interruption))
        self._sleeper = Sleeper(self.bell, self._pidfds, others, recording.questions)
        self._ended: dict[int, str] = {}
        self._left_at: dict[int, float] = {}  # when we saw that a peer had left
        self.stop_reason: str | None = None
        """Why a thread that waits for a peer is to stop waiting: set by another thread, that shuts us down, say, before
        it rings our own bell."""
        self.before_sleep: Callable[[], None] | None = None
        """Called before a waiting thread is put to sleep, in vain perhaps."""
        self.area_bytes = 0
        """Bytes of our areas, through which we exchange with some of the peers only."""
        self.spare_cores = _usable_cores(peers) - self.size
        """Cores left when every rank keeps one busy; negative when ranks share cores."""
        self.may_spin = True
        """Off while the progress thread has the turn: looking holds the interpreter's lock, which the rank's work
        needs."""

    @property
    def shared_bytes(self) -> int:
        """Bytes that we use of the memory that we show the peers, beyond what every rank needs."""
        return self.heap.used + self.area_bytes

    # Waiting --------------------------------------------------------------------------------------------------------

    def wait(
        self,
        ready: Callable[[], bool],
        what: Callable[[], str],
        until: float | None = None,
        timeouts: Timeouts | None = None,
        is_undecided: bool = False,
        needed: Sequence[int] | None = None,
    ) -> bool:
        """Wait until `ready()`; False when the monotonic time `until` came first.

        Args:
            ready: becomes true through something that a peer writes before it rings our bell.
            what: says, for messages, what is waited for.
            until: a time of our clock.
            timeouts: other ones than the job's.
            needed: the peers that are waited for, if not all: the leaving of others is nothing to us.
            is_undecided: rank 0's decision is waited for. A peer that has left may have had it already, while ours is
                under way; so for a moment only rank 0's own leaving counts.

        Raises:
            JobAbortedError: a peer ended, left or failed, and `ready()` is still false.
            StallError: the stall timeout is over.
        """
        self.watched_since = time.monotonic()
        for _ in range(self.looks):
            if ready():
                return True
        nudge = partial(self._nudge, self.others if needed is None else needed) if self.spare_cores <= 0 else None
        # With many ranks to a core, one that has not come yet need not be busy with other things: its turn on the core
        # has not come. All that wait would wake the progress threads of all others in vain.
        nudge_after = NUDGE_AFTER * max(1.0, self.size / max(1, self.size + self.spare_cores))
        wait_timer = WaitTimer(timeouts or self.timeouts, what, nudge, self._clock, nudge_after)
        if self.before_sleep is not None:
            self.before_sleep()
        while True:
            self.bell.arm()
            try:
                trouble = self._trouble(REASON_TIMEOUT if is_undecided else 0.0, needed)
                if self.network is not None:
                    self.network.progress()  # whatever we wait for, others may wait for what we have yet to send
                if ready():
                    return True
                if trouble is not None:
                    raise JobAbortedError(f"{what()}: {trouble}")
                if self.network is not None and self.network.trouble() is not None:
                    continue  # it has come to light only now, and nothing more may come that would wake us
                if self.stop_reason is not None:
                    raise JobAbortedError(f"{what()}: {self.stop_reason} before it was done")
                now = self._clock()
                self.watched_since = waking_clock.note_sleep(self.watched_since, 0.0)  # we may have been stopped
                now = min(now, self._clock())  # without that stop, and without one since
                if until is not None and now >= until:
                    return False
                due = min(wait_timer.look(now), self._next_look(until, is_undecided))
                slept = max(0.0, min(due - now, self._longest_sleep))
                self._sleep(slept)
                self.watched_since = waking_clock.note_sleep(self.watched_since, slept)
            finally:
                self.bell.disarm()

    @property
    def looks(self) -> int:
        """How often to look for what is waited for before sleeping."""
        if not self.may_spin or self.spare_cores < 0:
            return 2
        return SPINS if self.network is None else NETWORK_SPINS

    def _next_look(self, until: float | None, is_undecided: bool) -> float:
        """The time by which to look again though nobody has rung."""
        times = [float("inf") if until is None else until]
        if self.network is not None:
            times.append(self.network.next_look)
        if is_undecided:
            times += [left_at + REASON_TIMEOUT for left_at in self._left_at.values()]
        return min(times)

    def _nudge(self, needed: Sequence[int]) -> None:
        """Wake the progress threads of peers that have submitted something, or will, and are busy with other things."""
        for index in needed:
            self.segments[index].words[WANTED] = 1
            self.service_bells[index].ring()

    @property
    def is_nudged(self) -> bool:
        """Whether a peer waits for us, has said so, and has not been served since."""
        return self._words[WANTED] != 0

    def clear_nudge(self) -> None:
        """Something was completed; a peer that still waits will nudge again."""
        if self._words[WANTED]:
            self._words[WANTED] = 0

    def _sleep(self, seconds: float) -> None:
        for index in self._sleeper.sleep(None if seconds == float("inf") else seconds):
            self.note_end(index)
        if self._interruption is not None:
            self.stop_reason = self.stop_reason or self._interruption.interruption

    def longest_nap(self) -> float | None:
        """Return how many seconds a thread may sleep that looks after the network; None: until something comes."""
        due = float("inf") if self.network is None else self.network.companion_due
        return None if due == float("inf") else max(SHORTEST_NAP, due - self._clock())

    def note_end(self, index: int) -> None:
        """A peer's process is known to have ended."""
        self._ended.setdefault(index, peer_process.ending(self._peers[index].pidfd))

    def _trouble(self, grace: float = 0.0, needed: Sequence[int] | None = None) -> str | None:
        """Why a peer will not come any more, if that is known.

        To be read before the last look at what is waited for, never after it: a peer may do its part and then end.
        `grace`: seconds for which the leaving of other ranks than rank 0 does not count. `needed`: whose leaving
        counts at all; None: everybody's.
        """
        for index in self.others:
            state = self.segments[index].words[STATE]
            if state == FAILED:
                return f"{self.describe([index])} failed: {self.segments[index].reason}"
            if state == LEFT:
                self._left_at.setdefault(index, self._clock())
                if self._may_leave(index, grace, needed):
                    continue
                return f"{self.describe([index])} has left: {self.segments[index].reason}"
        for index, how in self._ended.items():
            if index in self._left_at and self._may_leave(index, grace, needed):
                continue
            return f"{self.describe([index])} {how}"
        return None if self.network is None else self.network.trouble()

    def _may_leave(self, index: int, grace: float, needed: Sequence[int] | None) -> bool:
        """Whether a peer that has left is not missed, or not yet."""
        if needed is not None and index not in needed:
            return True
        return self.ranks[index] != 0 and self._clock() < self._left_at[index] + grace

    def lost_rank(self) -> str | None:
        """The rank that has failed, or ended without leaving, if one is known; any thread may ask, at any time."""
        ended = select.poll()
        for pidfd in self._pidfds:
            ended.register(pidfd, select.POLLIN)
        gone = {self._pidfds[fd] for fd, _ in ended.poll(0)}
        for index in self.others:
            state = self.segments[index].words[STATE]
            if state == FAILED:
                return f"{self.describe([index])} failed: {self.segments[index].reason}"
            if index in gone and state != LEFT:
                return f"{self._describe_one(index, True)} {peer_process.ending(self._peers[index].pidfd)}"
        return None if self.network is None else self.network.failure

    @property
    def missing(self) -> int:
        """The number of peers that have left or failed; any thread may ask."""
        return sum(self.segments[index].words[STATE] in (LEFT, FAILED) for index in self.others)

    def departure_of(self, rank: int) -> str | None:
        """Return a sentence about a rank, of any host, that has left in an orderly way; any thread may ask."""
        if rank not in self.ranks:
            return None if self.network is None else self.network.departure_of(rank)
        index = self.ranks.index(rank)
        if self.segments[index].words[STATE] != LEFT:
            return None
        return f"{self.describe([index])} has left: {self.segments[index].reason}"

    # Telling and asking ---------------------------------------------------------------------------------------------

    def describe_rank(self, rank: int) -> str:
        """Name any rank for people."""
        if rank in self.ranks or self.network is None:
            return self.describe([self.ranks.index(rank)])
        return self.network.describe(rank)

    def describe(self, indices: Sequence[int]) -> str:
        return ", ".join(self._describe_one(index) for index in indices)

    def _describe_one(self, index: int, has_ended: bool = False) -> str:
        peer_info = self._peers[index]
        details = [f"process {peer_info.pid}"]
        if index != self.own and not (has_ended or index in self._ended):
            state = peer_process.condition(peer_info.pidfd)
            if state is not None:
                details.append(state)
        return f"rank {self.ranks[index]} ({', '.join(details)})"

    def announce(self, state: int, reason: str = "") -> None:
        """Tell the peers, and the other hosts, that we leave or have failed, and why."""
        if self._words[STATE] != RUNNING or not self.heap.is_ours:
            return
        self.mine.reason = reason
        self._words[STATE] = state
        for index in self.others:
            self.bells[index].force()
            self.service_bells[index].force()
        if self.network is not None:
            self.network.announce(state, reason)

    def service_sleeper(self, watches_peers: bool = False) -> Sleeper:
        """For the progress thread: sleeps until our service bell rings, or another host calls.

        `watches_peers`: it sees the end of peers, too.
        """
        calls = [] if self.network is None else [self.network.alarm_fd]
        pidfds = self._pidfds if watches_peers else {}
        return Sleeper(self.service_bells[self.own], pidfds, calls, recording.questions)

    def disown(self) -> None:
        """In a forked child: touch nothing of the parent's any more, and end a wait that the fork has interrupted."""
        self.heap.is_ours = False
        self.stop_reason = "this process was forked"
        self.bell.disown()
        if self.network is not None:
            self.network.disown()

    def close(self, is_hurried: bool = False) -> None:
        """Close the descriptors. The memory itself goes when the last array in it does."""
        for peer_info in self._peers:
            peer_info.close()
        if self.network is not None:
            self.network.close(is_hurried)
