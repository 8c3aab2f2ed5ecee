"""The slots that a trial gets: on the host that it fills best, and over several hosts only where none has room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Slots = list[tuple[str, int]]
"""Places for ranks, in rank order: hosts and slots."""


def place(free: Mapping[str, Sequence[int]], ranks: int) -> Slots | None:
    """Return the slots for a trial; None: there are too few.

    Args:
        free: the free slots of each host, in the order of the hosts.
        ranks: the number of ranks.
    """
    fitting = [host for host, slots in free.items() if len(slots) >= ranks]
    if fitting:
        best = min(fitting, key=lambda host: len(free[host]))
        return [(best, slot) for slot in sorted(free[best])[:ranks]]
    emptiest = sorted(free, key=lambda host: -len(free[host]))  # so that it is on few hosts
    places = [(host, slot) for host in emptiest for slot in sorted(free[host])]
    return places[:ranks] if len(places) >= ranks else None
