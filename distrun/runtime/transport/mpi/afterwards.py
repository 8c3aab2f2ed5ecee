"""Progress of MPI while no operation waits for it.

A request that is complete on the sender's side may still have messages in MPI's queues, because the kernel's buffers
were full. One of these is Open MPI's last message of its rendezvous protocol, which tells the receiver that all data
has arrived. MPI sends them the next time it is called. Without the calls here, this might never happen, since the
sender may not begin the next operation before the receiver has finished this one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from distrun.errors import JobAbortedError
from distrun.runtime.operations import waking_clock

if TYPE_CHECKING:
    from mpi4py import MPI

    from distrun.runtime.transport.shared_memory.doorbell import Doorbell

SHORTEST, LONGEST = 0.005, 1.0
"""Seconds from the last use of MPI to the first call, and the most seconds between two calls. The interval doubles
after each call."""
CALLS = 8
"""Calls of MPI at a time: an implementation may not progress everything in each call."""


class Afterwards:
    """Calls MPI from time to time after its last use. It is a `Companion` of the network."""

    def __init__(self, comm: MPI.Intracomm, bell: Doorbell) -> None:
        """`bell` wakes the progress thread of this rank, which then reads the new `due`."""
        from mpi4py import MPI

        self._probe = comm.Iprobe
        self._error = MPI.Exception
        self._bell = bell
        self._interval = SHORTEST
        self._is_over = False
        self.due = waking_clock.now() + SHORTEST
        """When to call MPI next, by the waking clock."""

    def note_use(self) -> None:
        """Schedule calls after MPI has just been used."""
        if self._is_over:
            return
        now = waking_clock.now()
        is_asleep = self.due - now > 2 * SHORTEST
        self._interval = SHORTEST
        self.due = now + SHORTEST
        if is_asleep:
            self._bell.ring()

    def end(self) -> None:
        """Stop the calls of MPI."""
        self._is_over, self.due = True, math.inf

    def progress(self) -> None:
        """Call MPI, and double the interval to the next call.

        Raises:
            JobAbortedError: MPI reports an error.
        """
        try:
            for _ in range(CALLS):
                self._probe()
        except self._error as error:
            raise JobAbortedError(f"MPI reports: {error}") from error
        self._interval = min(2 * self._interval, LONGEST)
        self.due = waking_clock.now() + self._interval
