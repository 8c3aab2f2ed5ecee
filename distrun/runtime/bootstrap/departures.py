"""Ranks that have ended without calling init: those that wait for them there need not wait any longer.

The agent of the host writes their numbers into memory that all of its ranks share, after `DEPARTURES_MAGIC`, each
followed by a space; an eventfd is readable from the first of them on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from distrun.host.ranks import list_ranks
from distrun.runtime.contract import DEPARTURES_FD, DEPARTURES_MAGIC

_LONGEST = 1 << 16  # bytes of the memory that are looked at: thousands of ranks


class Departures:
    """The interruption of a rank that waits in init for ranks that have ended."""

    def __init__(self, memory: int, stop_fd: int) -> None:
        """Args: the descriptors."""
        self._memory = memory
        self.stop_fd = stop_fd
        """Readable when a rank has ended so."""

    @property
    def interruption(self) -> str | None:
        """A sentence with the ranks; None while there are none."""
        ranks = sorted(map(int, os.pread(self._memory, _LONGEST, len(DEPARTURES_MAGIC)).split()[:1000]))
        return (
            f"{list_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} ended without calling init()"
            if ranks
            else None
        )


def departures(environ: Mapping[str, str]) -> Departures | None:
    """Return the departures that the agent of this host tells of; None: there is no agent, or a program between it and
    this process has closed the descriptors."""
    memory, _, stop_fd = environ.get(DEPARTURES_FD, "").partition(",")
    try:
        if os.pread(int(memory), len(DEPARTURES_MAGIC), 0) != DEPARTURES_MAGIC or "eventfd" not in os.readlink(
            f"/proc/self/fd/{int(stop_fd)}"
        ):
            return None
    except (ValueError, OSError):
        return None
    for descriptor in (int(memory), int(stop_fd)):
        os.set_inheritable(descriptor, False)
    return Departures(int(memory), int(stop_fd))
