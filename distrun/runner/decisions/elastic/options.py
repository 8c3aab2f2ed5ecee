"""The options of an elastic job that its decisions depend on."""

from __future__ import annotations

from dataclasses import dataclass

UNLIMITED = 1 << 20  # ranks: more than there are slots


@dataclass(frozen=True)
class ElasticOptions:
    """The limits within which an elastic job may change. All are checked already: 1 <= min_np <= np <= max_np."""

    np: int
    """The number of ranks that the user asked for."""
    min_np: int
    """The number of ranks without which the job waits."""
    max_np: int
    """The most ranks that the job has, however many slots there are."""
    spares: int = 0
    """The number of spares on each host."""
    max_restarts: int = 10
    """The number of failures that the job survives within the window. Planned changes count if `counts_changes`."""
    counts_changes: bool = False
    """Whether planned changes count as failures do, as with Horovod's --reset-limit."""
    gives_up_early: bool = True
    """Whether a script that fails repeatedly before any rank has joined ends the job while restarts are left."""
    restart_window: float | None = 3600.0
    """Seconds after which a failure is forgotten. None = never."""
    elastic_timeout: float = 600.0
    """Seconds that the job waits while it has fewer than `min_np` ranks, and that a newcomer has to arrive."""
    discovers: bool = False
    """Whether a script of the user's lists the hosts, so that others may come."""
    keepalive: float | None = 15.0
    """Seconds without a message after which an agent or the launcher gives up the connection. None = never."""
    cooldown: tuple[float, float] = (10.0, 3600.0)
    """The seconds that slots and hosts are barred if they fail repeatedly: the first time, and at most."""
