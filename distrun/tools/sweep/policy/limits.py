"""The user's choices that decisions depend on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The user's choices that decisions depend on."""

    ranks: int
    """The number of ranks of each trial."""
    grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL."""
    start_timeout: float = 60.0
    """Seconds that a sweep waits when it has lost all hosts."""
    max_failures: int | None = None
    """The number of failed trials after which the sweep ends; None = three if they are the first and fail alike."""
    spares: int = 0
    """The number of processes on each host that wait for the next trial."""
