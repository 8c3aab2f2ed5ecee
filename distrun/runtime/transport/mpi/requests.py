"""MPI requests, which are waited for without blocking inside MPI.

A blocking call of MPI busies a core while it waits, and never returns if a peer is dead. Here, requests are posted
without blocking and tested from time to time. In between, the rank sleeps, and is woken by the doorbells of its local
peers and by the death of any rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import JobAbortedError, UsageError
from distrun.runtime.operations import waking_clock
from distrun.runtime.operations.timeouts import FOREVER, WaitTimer
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.local_ranks import LocalRanks
from distrun.runtime.transport.mpi.afterwards import Afterwards
from distrun.runtime.transport.shared_memory.segment import FAILED, STATE

if TYPE_CHECKING:
    from mpi4py import MPI

LARGEST_MESSAGE = 1 << 30
"""Bytes in one MPI message. Counts have 32 bits in MPI before 4.0, so larger arrays take several messages."""
LARGEST_BETWEEN_HOSTS = 1 << 20
"""Bytes in one message between hosts, where MPI makes progress only while requests are tested: a message that completes
resets the interval between tests."""
SPIN = 0.0002
"""Seconds of testing before the first nap, if there are spare cores and no doorbell reports that something arrived."""
TESTS_PER_NAP = 4
"""Tests between two naps: MPI makes progress only inside its calls, and a limited amount in each."""
WINDOW = 32
"""The number of requests that are tested, the oldest first. A test of some requests progresses all posted ones."""
SHORTEST_NAP, SHORTEST_SLEEP, LONGEST_SLEEP = 50e-6, 0.001, 0.01
"""Seconds between two tests. Up to `SHORTEST_SLEEP`, the shortest time of a poll, nothing interrupts a nap. Doorbells
interrupt a longer sleep."""
GROWTH = 1.25
"""The factor between a nap and the next, while nothing arrives. So a message is noticed late by at most a quarter of
the time that was waited for it."""
LAST_WORDS = 0.2
"""Seconds when messages of a rank that has left or died may still arrive from MPI's queues."""

_abandoned: list[Sequence[MPI.Request]] = []
"""Requests that will never be complete, kept alive because MPI may write into their buffers until the process ends."""


def comm_world(rank: int, size: int, remedy: str) -> MPI.Intracomm:
    """Return MPI_COMM_WORLD, where this process must be rank `rank` of `size`. Initialise MPI if necessary.

    Raises:
        UsageError: the process has another rank in MPI, or MPI cannot be loaded. The text ends with `remedy`.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UsageError(f"mpi4py cannot load an MPI ({str(error).splitlines()[0]}): {remedy}") from None

    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (rank, size):
        raise UsageError(
            f"to MPI this process is rank {world.rank} of {world.size}, to the job it is rank {rank} of {size}: "
            f"{remedy}"
        )
    return world


class Requests:
    """Posts requests of one rank, and waits for them.

    The communicator is a duplicate of MPI_COMM_WORLD, because the script may use MPI as well.
    """

    def __init__(self, local_group: LocalGroup, rank: int, size: int, instead: str) -> None:
        """Collective: all ranks construct it together.

        Args:
            local_group: waits for its peers. If it has no network, the job has a single host, and the peers ring the
                doorbells when they send.
            rank: the number of this rank.
            size: the number of ranks in the job.
            instead: the value of DISTRUN_BACKEND to suggest if MPI cannot be used.

        Raises:
            UsageError: these ranks were not started by an MPI launcher, or MPI does not support threads.
        """
        remedy = (
            "start the script with mpirun or srun (srun --mpi=pmix or pmi2), and with the MPI that mpi4py finds, or "
            f"set DISTRUN_BACKEND={instead}"
        )
        try:
            world = comm_world(rank, size, remedy)
        except UsageError as error:
            raise UsageError(f"DISTRUN_BACKEND=mpi: {error}") from None

        from mpi4py import MPI

        if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            raise UsageError(
                "DISTRUN_BACKEND=mpi: MPI was initialised without MPI_THREAD_MULTIPLE, and the engine has a thread of "
                f"its own: leave mpi4py.rc.thread_level as it is, or set DISTRUN_BACKEND={instead}"
            )
        self._local_group = local_group
        self._local_ranks: LocalRanks = local_group
        self._is_rung = local_group.network is None
        self._largest = LARGEST_MESSAGE if self._is_rung else LARGEST_BETWEEN_HOSTS
        self._byte = MPI.BYTE
        self._testsome = MPI.Request.Testsome
        self._error = MPI.Exception
        self._afterwards: Afterwards | None = None
        self._posted: list[MPI.Request] = []
        self.comm, request = world.Idup()  # a duplicate, because the script may use MPI as well
        self._owns_comm = True
        self.complete(self.post([request]), lambda: "init(), which waits in MPI for all ranks")
        if local_group.network is not None:
            self._afterwards = Afterwards(self.comm, local_group.service_bells[local_group.own])
            local_group.network.accompany(self._afterwards)

    def of_set(self, local_ranks: LocalRanks) -> Requests:
        """Return the requests of a set of ranks on the same communicator, which numbers ranks as the job does.

        `local_ranks` are the ranks of the set on this host, for waiting.
        """
        requests = copy(self)
        requests._local_ranks, requests._posted, requests._owns_comm = local_ranks, [], False
        return requests

    def of_subgroup(self, local_ranks: LocalRanks) -> Requests:
        """Return the requests of some of the ranks of the job's only host, on a communicator of their own.

        In it, a rank's number is its position among them. Collective over them. It blocks inside MPI, so they should
        call it at about the same time.

        Raises:
            JobAbortedError: MPI reports an error.
        """
        requests = self.of_set(local_ranks)
        members = self.comm.Get_group().Incl(local_ranks.ranks)
        try:
            requests.comm = self.comm.Create_group(members)
        except self._error as error:
            abort_at_exit()
            raise JobAbortedError(f"MPI cannot connect ranks {local_ranks.ranks} with each other: {error}") from None
        finally:
            members.Free()
        requests._owns_comm = True
        return requests

    def post(self, posting: Iterable[MPI.Request]) -> list[MPI.Request]:
        """Post requests: iterating over `posting` posts them.

        Raises:
            JobAbortedError: MPI reports an error.
        """
        requests: list[MPI.Request] = []
        try:
            for request in posting:
                requests.append(request)
                self._posted.append(request)  # at once, so that `_abandon` finds it if the next one cannot be posted
        except BaseException as error:
            self._abandon()
            if isinstance(error, self._error):
                raise JobAbortedError(f"MPI reports: {error}") from error
            raise
        return requests

    def send(self, array: NDArray[Any], rank: int) -> Iterator[MPI.Request]:
        """Return an iterator for `post` that sends a contiguous array to `rank`.

        The array must not change until the requests are complete.
        """
        return (self.comm.Isend([piece, self._byte], rank) for piece in self.pieces(array))

    def receive(self, into: NDArray[Any], rank: int) -> Iterator[MPI.Request]:
        """Return an iterator for `post` that receives from `rank` in a contiguous array, as large as the one sent."""
        return (self.comm.Irecv([piece, self._byte], rank) for piece in self.pieces(into))

    def pieces(self, array: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Yield the array's bytes in pieces, one for each message, and nothing for an empty array."""
        raw = array.view(np.uint8)
        for start in range(0, raw.size, self._largest):
            yield raw[start : start + self._largest]

    def complete(self, requests: Sequence[MPI.Request], waiting_for: Callable[[], str]) -> None:
        """Wait until all `requests` are complete.

        Args:
            requests: posted requests.
            waiting_for: describes what is waited for, in messages.

        Raises:
            JobAbortedError: a rank ended, left or failed before they were complete, or MPI reports an error.
            StallError: they were not complete within the stall timeout.
        """
        left = [request for request in requests if request]
        try:
            if left:
                self._check_other_hosts(waiting_for)
                if not self._has_come(left):
                    self._wait(left, waiting_for)
        except BaseException as error:
            # The other ranks cannot complete the operation now.
            if self._local_group.stop_reason is not None:
                self._local_group.announce(FAILED, str(error))
            self._abandon()
            if isinstance(error, self._error):
                raise JobAbortedError(f"{waiting_for()}: MPI reports: {error}") from error
            raise
        if self._afterwards is not None:
            self._afterwards.note_use()
        if len(self._posted) > 2 * WINDOW:
            self._posted = [request for request in self._posted if request]

    def _has_come(self, left: list[MPI.Request]) -> bool:
        """Remove complete requests from `left`, testing while there are any. Return whether none is left."""
        while left:
            if not self._testsome(left[:WINDOW]):
                return False
            left[:] = [request for request in left if request]  # a complete request is false
        return True

    def _wait(self, left: list[MPI.Request], waiting_for: Callable[[], str]) -> None:
        timer = WaitTimer(self._local_group.timeouts, waiting_for, None, waking_clock.now)
        while not self._wait_for_one(left, waiting_for, timer.look(waking_clock.now())):
            pass

    def _wait_for_one(self, left: list[MPI.Request], waiting_for: Callable[[], str], until: float) -> bool:
        """Wait until a request of `left` is complete, or until the time `until`. Return whether all are complete."""
        count = len(left)
        nap = SHORTEST_SLEEP
        if not self._is_rung:
            nap = SHORTEST_NAP
            if self._spin(left, waiting_for):
                return not left
        while waking_clock.now() < until:
            if nap < SHORTEST_SLEEP:
                time.sleep(nap)
                self._check_other_hosts(waiting_for)
                for _ in range(TESTS_PER_NAP):
                    self._has_come(left)
            else:
                self._sleep(left, waiting_for, min(nap, LONGEST_SLEEP))
            if len(left) < count:
                break
            nap *= GROWTH
        return not left

    def _spin(self, left: list[MPI.Request], waiting_for: Callable[[], str]) -> bool:
        """Test without a pause for up to `SPIN` seconds. Return whether a request has completed."""
        count = len(left)
        if self._local_group.may_spin and self._local_group.spare_cores >= 0:
            stop = time.perf_counter() + SPIN
            while time.perf_counter() < stop:
                self._check_other_hosts(waiting_for)
                for _ in range(TESTS_PER_NAP):
                    if self._has_come(left) or len(left) < count:
                        return True
        return False

    def _check_other_hosts(self, waiting_for: Callable[[], str]) -> None:
        """Raise `JobAbortedError` if a rank of another host is known to have failed.

        Call it before each test: when Open MPI finds that a peer is gone, it ends the process with a report that does
        not name the rank.
        """
        network = self._local_group.network
        if network is not None:
            network.progress()
            if network.failure is not None:
                raise JobAbortedError(f"{waiting_for()}: {network.failure}")

    def _sleep(self, left: list[MPI.Request], waiting_for: Callable[[], str], seconds: float) -> None:
        """Sleep until a request of `left` is complete, at most for `seconds`."""
        count = len(left)

        def ready() -> bool:
            self._check_other_hosts(waiting_for)
            return self._has_come(left) or len(left) < count

        try:
            self._local_ranks.wait(ready, waiting_for, waking_clock.now() + seconds, FOREVER)
        except JobAbortedError:
            self._check_other_hosts(waiting_for)
            # A rank is gone, but may have sent everything before it ended.
            deadline = time.monotonic() + LAST_WORDS
            while not self._has_come(left):
                if time.monotonic() > deadline:
                    raise
                time.sleep(SHORTEST_NAP)

    def _abandon(self) -> None:
        if self._afterwards is not None:
            self._afterwards.end()
        keep([request for request in self._posted if request])

    def close(self) -> None:
        """Free the communicator if this object owns it. If the job has failed, make sure that this process can end.

        A rank that left before others failed still waits for them in MPI_Finalize, so that it does not cut off their
        reports.
        """
        if self._owns_comm and self._afterwards is not None:
            self._afterwards.end()
        states = [segment.words[STATE] for segment in self._local_group.segments]
        network = self._local_group.network
        if states[self._local_group.own] == FAILED or _abandoned:
            abort_at_exit()
        elif self._owns_comm and FAILED not in states and (network is None or network.failure is None):
            self.comm.Free()


def keep(requests: Sequence[MPI.Request]) -> None:
    """Keep incomplete `requests` alive until the process ends, because the job has failed."""
    _abandoned.append(requests)
    abort_at_exit()


def abort_at_exit() -> None:
    """Make this process abort MPI when the interpreter ends, because the job has failed.

    mpi4py finalises MPI when the interpreter ends, and MPI_Finalize waits for all ranks, including dead ones. So a rank
    whose job has failed aborts MPI at this point instead. By then its script has reported its errors and run its exit
    handlers.
    """
    from mpi4py.run import set_abort_status

    set_abort_status(1)
