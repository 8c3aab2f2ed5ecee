"""The memory in which an agent tells its ranks of others that have ended without calling init.

`runtime.bootstrap.departures` reads it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from distrun.runtime.contract import DEPARTURES_FD, DEPARTURES_MAGIC


class Departures:
    """The memory with the ranks, and the eventfd that wakes those that wait."""

    def __init__(self) -> None:
        self._memory = os.memfd_create("distrun-ended")
        os.write(self._memory, DEPARTURES_MAGIC)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ranks: set[int] = set()
        self.environ = {DEPARTURES_FD: f"{self._memory},{self._bell}"}
        """The variable that all ranks of the host have to get; they inherit the descriptors."""

    def add(self, ranks: Iterable[int]) -> None:
        """Tell of ranks that have ended."""
        new = sorted(set(ranks) - self._ranks)
        if new:
            self._ranks.update(new)
            os.write(self._memory, b"".join(b"%d " % rank for rank in new))
            os.eventfd_write(self._bell, 1)
