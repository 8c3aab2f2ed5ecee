"""Progress of MPI while nobody waits for it.

A request that is complete on the side of the sender may still have messages in the queues of MPI: the kernel had no
room for them when they were to be sent (Open MPI's last message of a rendezvous, by which the receiver learns that all
is there, is one of them). MPI sends them when it is called the next time, which may be never, since the sender may not
begin the next operation before the receiver has ended this one.
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
"""Seconds from the last use of MPI to the first look, and between two looks at most; each takes twice as long to come
as the one before."""
CALLS = 8
"""Calls in one look: MPI implementations do not look at everything in each."""


class Afterwards:
    """Calls MPI at times of which the network knows, after its last use."""

    def __init__(self, comm: MPI.Intracomm, bell: Doorbell) -> None:
        """`bell` wakes the progress thread of this rank, so that it notes a new time."""
        from mpi4py import MPI

        self._probe = comm.Iprobe
        self._error = MPI.Exception
        self._bell = bell
        self._interval = SHORTEST
        self._is_over = False
        self.due = waking_clock.now() + SHORTEST
        """When to look next, by the waking clock."""

    def note_use(self) -> None:
        """MPI has been used just now."""
        if self._is_over:
            return
        now = waking_clock.now()
        is_asleep = self.due - now > 2 * SHORTEST
        self._interval = SHORTEST
        self.due = now + SHORTEST
        if is_asleep:
            self._bell.ring()

    def end(self) -> None:
        """Do not call MPI any more."""
        self._is_over, self.due = True, math.inf

    def progress(self) -> None:
        """Look, and let the next look be later.

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
