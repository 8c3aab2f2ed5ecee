"""The neighbourhood: the ranks of one host, what each shows the others, and how they wait for one another."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Sequence

from distrun.errors import JobAbortedError
from distrun.runtime.operations.timeouts import Timeouts, WaitTimer
from distrun.runtime.rendezvous.within_host import PeerInfo
from distrun.runtime.shared_memory import peer_process
from distrun.runtime.shared_memory.doorbell import Doorbell, Sleeper
from distrun.runtime.shared_memory.segment import (
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
from distrun.runtime.transport.network import HEARSAY, Network

SPINS = 1000
"""Looks before sleeping, some tens of microseconds: a wake-up costs about as much as this, so waiting costs at most twice."""
NETWORK_SPINS = 300
"""The same where a look asks the kernel what has come over the network."""


def _usable_cores(peers: Sequence[PeerInfo]) -> int:
    """The cores that the ranks together may run on: mpirun and srun bind each rank to a few."""
    cores = set(os.sched_getaffinity(0))
    for peer_info in peers:
        with contextlib.suppress(OSError):
            cores |= os.sched_getaffinity(peer_info.pid)
    return len(cores)


class LocalGroup:
    """The ranks of one host as one of them sees them.

    Neighbours are numbered by position: `ranks[i]` is the world rank of neighbour i, in rising order; `own` is our number.
    """

    def __init__(
        self,
        own: int,
        ranks: Sequence[int],
        peers: Sequence[PeerInfo],
        timeouts: Timeouts,
        network: Network | None = None,
    ) -> None:
        """`network` is given where the job has more hosts than this one."""
        self.network = network
        self.own = own
        self.size = len(peers)
        self.ranks = tuple(ranks)
        self.timeouts = timeouts
        self._peers = peers
        size = os.fstat(peers[0].segment).st_size
        self.segments = [Segment(peer_info.segment, size, self.size) for peer_info in peers]
        self.mine = self.segments[own]
        self.heap = Heap(self.mine)
        self.bells = self._bells([p.bell for p in peers], SLEEPING)
        self.service_bells = self._bells([p.service_bell for p in peers], SERVICE_SLEEPING)
        self.bell = self.bells[own]
        self.others = [index for index in range(self.size) if index != own]
        self._pidfds = {peers[index].pidfd: index for index in self.others}
        self._sleeper = Sleeper(self.bell, self._pidfds, None if network is None else network.fd)
        self._ended: dict[int, str] = {}
        self._left_at: dict[int, float] = {}  # when we saw that a neighbour had left
        self.leaving = False
        """Set by a thread that shuts us down, before it rings our own bell: whoever waits for a neighbour stops waiting."""
        self._epoch = 0
        self._words = self.mine.words
        self._line_start = self.mine.layout.lines // 8
        self._line_words = self.mine.layout.line_words
        self._their_words = [self.segments[index].words for index in self.others]
        self._their_bells = [self.bells[index] for index in self.others]
        self.spare_cores = _usable_cores(peers) - self.size
        """Cores left when every rank keeps one busy; negative when ranks share cores."""
        self.may_spin = True
        """Off while our engine's own thread drives: looking holds the interpreter's lock, which the rank's work needs."""

    def _bells(self, fds: Sequence[int], word: int) -> list[Doorbell]:
        return [Doorbell(fd, segment.words, word) for fd, segment in zip(fds, self.segments, strict=True)]

    # The exchange ---------------------------------------------------------------------------------------------------
    #
    # A barrier at which every rank shows the others a line of words. Everybody writes a line, then the number of the
    # exchange; and goes on when all numbers have come as far. There are two lines, used in turn: a line is written again
    # two exchanges later, which its owner reaches only after everybody arrived at the one between, that is, has read it.
    # The same holds for the two staging buffers, which are used in step with the lines.

    @property
    def parity(self) -> int:
        """Which line and which staging buffer the *next* exchange uses."""
        return (self._epoch + 1) & 1

    def exchange(self, words: Sequence[int], what: str) -> list[Sequence[int]]:
        """Show `words` (64-bit integers, at most `Layout.line_words`) to all; everybody's, by local rank.

        `what` names the operation for whoever has to be told that it waits.

        Raises:
            JobAbortedError: a neighbour ended, left or failed before it arrived.
            StallError: it did not arrive within the stall timeout.
        """
        self._epoch = epoch = self._epoch + 1
        start = self._line_start + (epoch & 1) * self._line_words
        count = len(words)
        mine = self._words
        for index in range(count):
            mine[start + index] = words[index]
        mine[EPOCH] = epoch
        for bell in self._their_bells:
            bell.ring()
        theirs = self._their_words
        for words_of_peer in theirs:
            if words_of_peer[EPOCH] < epoch:
                self.wait(lambda: all(their[EPOCH] >= epoch for their in theirs), lambda: self._lagging(epoch, what))
                break
        stop = start + count
        return [segment.words[start:stop] for segment in self.segments]

    def _lagging(self, epoch: int, what: str) -> str:
        late = [index for index in self.others if self.segments[index].words[EPOCH] < epoch]
        return f"{what}, which has begun and waits for {self.describe(late)}"

    # Waiting --------------------------------------------------------------------------------------------------------

    def wait(
        self,
        ready: Callable[[], bool],
        what: Callable[[], str],
        until: float | None = None,
        timeouts: Timeouts | None = None,
        is_undecided: bool = False,
    ) -> bool:
        """Wait until `ready()`; False when the monotonic time `until` came first.

        `is_undecided` says that rank 0's decision is waited for. A neighbour that has left may have had it already, while ours
        is under way; so for a moment only rank 0's own leaving counts.

        `ready` must become true through something a neighbour wrote before ringing our bell. `what` says, in words, what is
        waited for.

        Raises:
            JobAbortedError: a neighbour ended, left or failed, and `ready()` is still false.
            StallError: the stall timeout is over.
        """
        spins = SPINS if self.network is None else NETWORK_SPINS
        for _ in range(spins if self.may_spin and self.spare_cores >= 0 else 2):
            if ready():
                return True
        wait_timer = WaitTimer(timeouts or self.timeouts, what, self._nudge if self.spare_cores <= 0 else None)
        while True:
            self.bell.arm()
            try:
                trouble = self._trouble(HEARSAY if is_undecided else 0.0)
                if self.network is not None:
                    self.network.progress()  # whatever we wait for, others may wait for what we have yet to send
                if ready():
                    return True
                if trouble is not None:
                    raise JobAbortedError(f"{what()}: {trouble}")
                if self.network is not None and self.network.trouble() is not None:
                    continue  # it has come to light only now, and nothing more may come that would wake us
                if self.leaving:
                    raise JobAbortedError(f"{what()}: distrun.shutdown() was called before it was done")
                now = time.monotonic()
                if until is not None and now >= until:
                    return False
                self._sleep(min(wait_timer.look(now), self._next_look(until, is_undecided)) - now)
            finally:
                self.bell.disarm()

    def _next_look(self, until: float | None, is_undecided: bool) -> float:
        """The monotonic time by which to look again though nobody has rung."""
        times = [float("inf") if until is None else until]
        if self.network is not None:
            times.append(self.network.next_look)
        if is_undecided:
            times += [left_at + HEARSAY for left_at in self._left_at.values()]
        return min(times)

    def _nudge(self) -> None:
        """Wake the engines of ranks that have submitted something, or will, and are busy with other things (see `Engine`)."""
        for index in self.others:
            self.segments[index].words[WANTED] = 1
            self.service_bells[index].ring()

    @property
    def is_wanted(self) -> bool:
        """Whether a neighbour has prodded us and was not served since."""
        return self._words[WANTED] != 0

    def served(self) -> None:
        """Something was completed. Whoever still waits will prod again."""
        if self._words[WANTED]:
            self._words[WANTED] = 0

    def _sleep(self, seconds: float) -> None:
        for index in self._sleeper.sleep(None if seconds == float("inf") else seconds):
            self.note_end(index)

    def note_end(self, index: int) -> None:
        """A neighbour's process is known to have ended."""
        self._ended.setdefault(index, peer_process.ending(self._peers[index].pidfd))

    def _trouble(self, grace: float = 0.0) -> str | None:
        """Why somebody will not come any more. Read before the last look at what is waited for, never after it.

        `grace`: seconds for which the leaving of other ranks than rank 0 does not count.
        """
        for index in self.others:
            state = self.segments[index].words[STATE]
            if state == FAILED:
                return f"{self.describe([index])} failed: {self.segments[index].reason}"
            if state == LEFT:
                left_at = self._left_at.setdefault(index, time.monotonic())
                if self.ranks[index] != 0 and time.monotonic() < left_at + grace:
                    continue
                return f"{self.describe([index])} has left: {self.segments[index].reason}"
        for index, how in self._ended.items():
            if index in self._left_at and time.monotonic() < self._left_at[index] + grace:
                continue
            return f"{self.describe([index])} {how}"
        return None if self.network is None else self.network.trouble()

    def fallen(self) -> str | None:
        """Which rank has failed, or ended without leaving, if that is known; any thread may ask, at any time."""
        ended = select.poll()
        for pidfd in self._pidfds:
            ended.register(pidfd, select.POLLIN)
        gone = {self._pidfds[fd] for fd, _ in ended.poll(0)}
        for index in self.others:
            state = self.segments[index].words[STATE]
            if state == FAILED:
                return f"{self.describe([index])} failed: {self.segments[index].reason}"
            if index in gone and state != LEFT:
                return f"{self.describe([index])} {peer_process.ending(self._peers[index].pidfd)}"
        return None if self.network is None else self.network.failure

    # Telling and asking ---------------------------------------------------------------------------------------------

    def describe_rank(self, rank: int) -> str:
        """Any rank for people."""
        if rank in self.ranks or self.network is None:
            return self.describe([self.ranks.index(rank)])
        return self.network.describe(rank)

    def describe(self, indices: Sequence[int]) -> str:
        """Neighbours for people: `rank 1 (process 4242, stopped by a signal)`."""
        return ", ".join(self._describe_one(index) for index in indices)

    def _describe_one(self, index: int) -> str:
        peer_info = self._peers[index]
        details = [f"process {peer_info.pid}"]
        if index != self.own and index not in self._ended:
            state = peer_process.condition(peer_info.pidfd)
            if state is not None:
                details.append(state)
        return f"rank {self.ranks[index]} ({', '.join(details)})"

    def announce(self, state: int, reason: str = "") -> None:
        """Tell the neighbours, and the other hosts, that we leave or have failed, and why."""
        if self.mine.words[STATE] != RUNNING or not self.heap.is_ours:
            return
        self.mine.reason = reason
        self.mine.words[STATE] = state
        for index in self.others:
            self.bells[index].force()
            self.service_bells[index].force()
        if self.network is not None:
            self.network.announce(state, reason)

    def service_sleeper(self) -> Sleeper:
        """For the engine's own thread: sleeps until our service bell rings, or another host raises the alarm."""
        return Sleeper(self.service_bells[self.own], {}, None if self.network is None else self.network.alarm_fd)

    def close(self) -> None:
        """Close the descriptors. The memory itself goes when the last array in it does."""
        for peer_info in self._peers:
            peer_info.close()
        if self.network is not None:
            self.network.close()
