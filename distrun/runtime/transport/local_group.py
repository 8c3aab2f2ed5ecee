"""The local group: all ranks of one host, which wait for each other and notice when one is gone."""

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

FEW_LOOKS = 2
"""The number of checks before a rank sleeps where it must not spin."""
SPINS = 1000
"""The number of checks before a rank sleeps. They take some tens of microseconds, about as long as a wake-up, so a wait
costs at most twice its length."""
_SLEEPS_PER_TIMEOUT = 20  # the longest sleep is this fraction of the stall timeout
NETWORK_SPINS = 300
"""The number of checks before sleeping if each of them polls the network by a system call."""
SHORTEST_NAP = 0.005
"""The least seconds that a thread sleeps between progressing the network, since another thread may be doing so."""


def _usable_cores(peers: Sequence[PeerInfo]) -> int:
    """Return the number of cores that the ranks may run on together: mpirun and srun bind each rank to a few."""
    cores = set(os.sched_getaffinity(0))
    for peer_info in peers:
        with contextlib.suppress(OSError):
            cores |= os.sched_getaffinity(peer_info.pid)
    return len(cores)


def _bells(fds: Sequence[int], segments: Sequence[Segment], word: int) -> list[Doorbell]:
    return [Doorbell(fd, segment.words, word) for fd, segment in zip(fds, segments, strict=True)]


class LocalGroup(LocalRanks):
    """All ranks of one host, as one of them sees them. The other ranks are its local peers."""

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
        """`network` is given if the job has several hosts. `interruption` may end all waits. `rendezvous` is None in
        tests."""
        size = os.fstat(peers[0].segment).st_size
        segments = [Segment(peer_info.segment, size, len(peers)) for peer_info in peers]
        bells = _bells([p.bell for p in peers], segments, SLEEPING)
        super().__init__(own, ranks, segments, Heap(segments[own]), bells, timeouts, network)
        layout = self.mine.layout
        self._open([segment.words for segment in segments], EPOCH, layout.lines // 8, layout.stage)
        self.rendezvous = rendezvous
        self.watched_since = time.monotonic()
        """The monotonic time up to when the waking clock knows whether this process was stopped during a wait."""
        self._clock = clock
        # Short enough for `waking_clock` to notice most of the time when this process is stopped.
        self._longest_sleep = timeouts.timeout / _SLEEPS_PER_TIMEOUT or float("inf")
        self._peers = peers
        self.service_bells = _bells([p.service_bell for p in peers], segments, SERVICE_SLEEPING)
        self.bell = self.bells[own]
        self._pidfds = {peers[index].pidfd: index for index in self.others}
        self._interruption = interruption
        others = (*([] if network is None else [network.fd]), *stop_descriptors(interruption))
        self._sleeper = Sleeper(self.bell, self._pidfds, others, recording.questions)
        self._ended: dict[int, str] = {}
        self._left_at: dict[int, float] = {}  # when this rank saw that a peer had left
        self.stop_reason: str | None = None
        """Why a thread that waits for a peer must stop waiting. Another thread, for example one that shuts down, sets
        it before it rings this rank's own bell."""
        self.before_sleep: Callable[[], None] | None = None
        """Called before a waiting thread may sleep."""
        self.area_bytes = 0
        """The bytes of this rank's areas, for exchanges in subgroups."""
        self.spare_cores = _usable_cores(peers) - self.size
        """The cores that are left if every rank keeps one busy. Negative if ranks share cores."""
        self.may_spin = True
        """False while the progress thread makes progress: checking in a loop holds the interpreter's lock (GIL), which
        the rank's other threads need."""

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory that this rank uses, beyond what every rank needs."""
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
        """Wait until `ready()` is true. Return False if the time `until` comes first.

        Args:
            ready: becomes true by something that a peer writes before it rings this rank's bell.
            what: describes, for messages, what is waited for.
            until: a time of this rank's clock, in seconds.
            timeouts: timeouts to use instead of the job's.
            is_undecided: whether a decision of rank 0 is waited for. A peer that has left may have received it already
                while it is still on its way to this rank. So for `REASON_TIMEOUT` seconds only the departure of rank 0
                counts.
            needed: the indices of the peers that are waited for, if not all. The departure of others does not count.

        Raises:
            JobAbortedError: a peer ended, left or failed, and `ready()` is still false.
            StallError: the stall timeout has passed.
        """
        self.watched_since = time.monotonic()
        for _ in range(self.looks):
            if ready():
                return True
        nudge = partial(self._nudge, self.others if needed is None else needed) if self.spare_cores <= 0 else None
        # With several ranks to a core, a rank that has not arrived may simply not have been scheduled. If the waiting
        # ranks nudged so early, they would wake the progress threads of all others for nothing.
        nudge_after = NUDGE_AFTER * max(1.0, self.size / max(1, self.size + self.spare_cores))
        wait_timer = WaitTimer(timeouts or self.timeouts, what, nudge, self._clock, nudge_after)
        if self.before_sleep is not None:
            self.before_sleep()
        while True:
            # The order matters: arm the bell, read who is gone, then check `ready` once more, then sleep. What a peer
            # writes after this check rings the bell. What it wrote before it died is seen by the check.
            self.bell.arm()
            try:
                trouble = self._trouble(REASON_TIMEOUT if is_undecided else 0.0, needed)
                if self.network is not None:
                    self.network.progress()  # other ranks may wait for what this one has yet to send
                if ready():
                    return True
                if trouble is not None:
                    raise JobAbortedError(f"{what()}: {trouble}")
                if self.network is not None and self.network.trouble() is not None:
                    continue  # found only now, and perhaps nothing else will wake this thread
                if self.stop_reason is not None:
                    raise JobAbortedError(f"{what()}: {self.stop_reason} before it was done")
                # This process may have been stopped since the last sleep. The clock must not count that time, whether
                # it was before or after `now` is read.
                now = self._clock()
                self.watched_since = waking_clock.note_sleep(self.watched_since, 0.0)
                now = min(now, self._clock())
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
        """How often to check the condition of a wait before sleeping."""
        if not self.may_spin or self.spare_cores < 0:
            return FEW_LOOKS
        return SPINS if self.network is None else NETWORK_SPINS

    def _next_look(self, until: float | None, is_undecided: bool) -> float:
        """Return the time to check again even if the bell has not rung."""
        times = [float("inf") if until is None else until]
        if self.network is not None:
            times.append(self.network.next_look)
        if is_undecided:
            times += [left_at + REASON_TIMEOUT for left_at in self._left_at.values()]
        return min(times)

    def _nudge(self, needed: Sequence[int]) -> None:
        """Wake the progress threads of the `needed` peers, whose other threads may be busy with something else."""
        for index in needed:
            self.segments[index].words[WANTED] = 1
            self.service_bells[index].ring()

    @property
    def is_nudged(self) -> bool:
        """Whether a peer that waits for this rank has nudged it, and nothing has been completed since."""
        return self._words[WANTED] != 0

    def clear_nudge(self) -> None:
        """Clear the nudge after something was completed. A peer that still waits will nudge again."""
        if self._words[WANTED]:
            self._words[WANTED] = 0

    def _sleep(self, seconds: float) -> None:
        for index in self._sleeper.sleep(None if seconds == float("inf") else seconds):
            self.note_end(index)
        if self._interruption is not None:
            self.stop_reason = self.stop_reason or self._interruption.interruption

    def longest_nap(self) -> float | None:
        """Return the most seconds that a thread that progresses the network may sleep, or None for no limit."""
        due = float("inf") if self.network is None else self.network.companion_due
        return None if due == float("inf") else max(SHORTEST_NAP, due - self._clock())

    def note_end(self, index: int) -> None:
        """Record that the process of the peer `index` has ended."""
        self._ended.setdefault(index, peer_process.ending(self._peers[index].pidfd))

    def _trouble(self, grace: float = 0.0, needed: Sequence[int] | None = None) -> str | None:
        """Return why a peer will never do its part, or None if no such reason is known.

        Call it before the last check of what is waited for, never after it: a peer may do its part and then end.

        Args:
            grace: seconds when the departure of ranks other than rank 0 does not count yet.
            needed: the indices of the peers whose departure counts. None for all.
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
        """Return whether the departure of the peer `index` does not count, or not yet."""
        if needed is not None and index not in needed:
            return True
        return self.ranks[index] != 0 and self._clock() < self._left_at[index] + grace

    def lost_rank(self) -> str | None:
        """Return a sentence about a rank that has failed, or ended without leaving, or None. Any thread may call it."""
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
        """The number of peers that have left or failed. Any thread may read it."""
        return sum(self.segments[index].words[STATE] in (LEFT, FAILED) for index in self.others)

    def departure_of(self, rank: int) -> str | None:
        """Return a sentence if `rank`, of any host, has left in an orderly way, else None. Any thread may call it."""
        if rank not in self.ranks:
            return None if self.network is None else self.network.departure_of(rank)
        index = self.ranks.index(rank)
        if self.segments[index].words[STATE] != LEFT:
            return None
        return f"{self.describe([index])} has left: {self.segments[index].reason}"

    # Describing, announcing and closing -----------------------------------------------------------------------------

    def describe_rank(self, rank: int) -> str:
        """Return a text that names `rank`, of any host."""
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
        """Announce to the peers and the other hosts that this rank leaves or has failed (`state`), and the `reason`."""
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
        """Return the sleeper of the progress thread. The service bell and alarms of other hosts wake it.

        If `watches_peers`, it also wakes when a peer ends.
        """
        calls = [] if self.network is None else [self.network.alarm_fd]
        pidfds = self._pidfds if watches_peers else {}
        return Sleeper(self.service_bells[self.own], pidfds, calls, recording.questions)

    def disown(self) -> None:
        """In a forked child: detach from what belongs to the parent, and end a wait that the fork interrupted."""
        self.heap.is_ours = False
        self.stop_reason = "this process was forked"
        self.bell.disown()
        if self.network is not None:
            self.network.disown()

    def close(self, is_hurried: bool = False) -> None:
        """Close the descriptors. The memory itself is freed with the last array in it. `is_hurried`: see
        `Network.close`."""
        for peer_info in self._peers:
            peer_info.close()
        if self.network is not None:
            self.network.close(is_hurried)
