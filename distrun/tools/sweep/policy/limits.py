"""The user's options that the decisions depend on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The user's options that the decisions depend on."""

    ranks: int
    """The number of ranks of each trial."""
    grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL."""
    start_timeout: float = 60.0
    """Seconds that a sweep waits when too few hosts are left for a trial."""
    max_failures: int | None = None
    """The number of failed trials that the sweep survives. None = any, unless the first three all fail alike."""
    spares: int = 0
    """The number of processes on each host that wait for the next trial."""
