"""Placement: a trial gets slots on the host that it fills best, and on several hosts only if none has room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Slots = list[tuple[str, int]]
"""The hosts and slots of ranks, in rank order."""


def place(free: Mapping[str, Sequence[int]], ranks: int) -> Slots | None:
    """Return the slots for a trial. None: there are too few.

    Args:
        free: host -> its free slots.
        ranks: the number of ranks.
    """
    fitting = [host for host, slots in free.items() if len(slots) >= ranks]
    if fitting:
        best = min(fitting, key=lambda host: len(free[host]))
        return [(best, slot) for slot in sorted(free[best])[:ranks]]
    emptiest = sorted(free, key=lambda host: -len(free[host]))  # so that the trial is on few hosts
    places = [(host, slot) for host in emptiest for slot in sorted(free[host])]
    return places[:ranks] if len(places) >= ranks else None
