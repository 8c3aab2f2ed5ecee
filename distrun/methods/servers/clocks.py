"""Stale synchronous parallel: how far the workers of a server may drift apart.

The clock of a worker is the number of steps whose gradients it has pushed. With staleness s, the parameters that a
worker computes step c with (from 0) contain all gradients, of all workers, of the steps before c - s. So 0 is
synchronous, and with infinity no worker ever waits.

Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (NIPS 2013).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LEFT = 1 << 62
"""The clock of a worker that has left, so that no other waits for it."""


def needed(step: int, staleness: float) -> int:
    """Return the clock that the slowest worker must have reached before a worker may compute `step`, counted from 0."""
    return 0 if math.isinf(staleness) else max(0, step - int(staleness))


def slowest(clocks: Sequence[int]) -> int:
    """Return the clock of the slowest worker that has not left, or `LEFT` if all have."""
    return min(clocks, default=LEFT)


def are_complete(clocks: Sequence[int], arrived: frozenset[int]) -> bool:
    """Return whether a synchronous step has the gradients of all workers that have not left."""
    return bool(arrived) and all(worker in arrived or clock == LEFT for worker, clock in enumerate(clocks))
