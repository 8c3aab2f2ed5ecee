"""An exchange of texts through a store of torch.distributed, before there is any other way to communicate."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from distrun.errors import BootstrapError
from distrun.host.ranks import list_ranks

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

log = logging.getLogger("distrun")


def exchange(store: Store, rank: int, size: int, text: str, timeout: float, warning: float) -> list[str]:
    """Return the texts of all ranks, by rank. The ranks may exchange texts any number of times.

    Args:
        store: the store that the ranks share.
        rank, size: this rank, and the number of ranks.
        text: this rank's text.
        timeout: seconds to wait for the others.
        warning: seconds after which a wait is reported, and again each time it has doubled. 0: never.

    Raises:
        BootstrapError: the others did not come in time, or the store is gone.
    """
    # Numbered, so that keys of earlier exchanges in this store are not mistaken for these.
    number = (store.add(f"distrun/{size}/arrivals", 1) - 1) // size
    keys = [f"distrun/{size}/{number}/{other}" for other in range(size)]
    everybody = f"distrun/{size}/{number}/all"

    def missing() -> list[int]:
        return [other for other in range(size) if not store.check([keys[other]])]

    store.set(keys[rank], text)
    if rank == 0:
        _wait(store, keys, timeout, warning, missing)
        store.set(everybody, json.dumps([store.get(key).decode() for key in keys]))
    _wait(store, [everybody], timeout, warning, missing)
    texts: list[str] = json.loads(store.get(everybody))
    return texts


def _wait(store: Store, keys: list[str], timeout: float, warning: float, missing: Callable[[], list[int]]) -> None:
    """Wait until the keys have values, and report the missing ranks meanwhile."""
    started, next_report = time.monotonic(), warning or timeout
    while True:
        try:
            store.wait(keys, timedelta(seconds=max(0.001, started + min(next_report, timeout) - time.monotonic())))
            return
        except RuntimeError as error:  # each kind of store raises a subclass of its own
            waited = time.monotonic() - started
            try:
                ranks = missing() or [0]
            except RuntimeError:
                first_line = str(error).partition("\n")[0]
                raise BootstrapError(f"the store of torch.distributed is gone ({first_line})") from None
        if waited >= timeout:
            raise BootstrapError(
                f"{list_ranks(ranks)} did not call init_process_group within {timeout:g} s (its timeout): see whether "
                "they are still starting or have ended"
            )
        if waited >= next_report:
            log.warning("init_process_group has waited for %s for %.0f s", list_ranks(ranks), waited)
            next_report *= 2
