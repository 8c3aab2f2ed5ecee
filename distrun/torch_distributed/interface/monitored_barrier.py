"""The barrier that reports which ranks are missing, by way of the group's store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store

from distrun.errors import StallError
from distrun.host.ranks import list_ranks

_ANSWER_TIME = 10.0  # seconds that the first rank has after its timeout to report the missing ranks


def wait_for_all(store: Store, key: str, rank: int, ranks: Sequence[int], timeout: float, group: str) -> None:
    """Return when all ranks of a group have called this.

    Args:
        store: the store that the ranks share.
        key: a key that no other barrier has.
        rank: this rank's rank in the group.
        ranks: the ranks of the group in the job.
        timeout: seconds.
        group: the name of the group in messages.

    Raises:
        StallError: a rank did not call it in time. The text lists the missing ranks.
    """
    store.set(f"{key}/{rank}", "here")
    verdict = f"{key}/verdict"
    if rank == 0:
        missing = _missing(store, key, len(ranks), timeout)
        who = list_ranks([ranks[each] for each in missing]) if missing else ""
        store.set(verdict, who)
    else:
        try:
            store.wait([verdict], timedelta(seconds=timeout + _ANSWER_TIME))
            who = store.get(verdict).decode()
        except RuntimeError:  # each kind of store raises a subclass of its own
            who = list_ranks([ranks[0]])
    if who:
        raise StallError(
            f"monitored_barrier of process group {group!r}: {who} did not call it within {timeout:g} s: see where "
            "they are, or give it a longer `timeout`"
        )


def _missing(store: Store, key: str, size: int, timeout: float) -> list[int]:
    """Return the ranks that are missing after the timeout."""
    deadline = time.monotonic() + timeout
    keys = [f"{key}/{rank}" for rank in range(size)]
    for each in keys:
        left = deadline - time.monotonic()
        try:
            store.wait([each], timedelta(seconds=max(left, 0.001)))
        except RuntimeError:
            break
    else:
        return []
    return [rank for rank, each in enumerate(keys) if not store.check([each])]
