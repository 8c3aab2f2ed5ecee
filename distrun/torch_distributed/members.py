"""The ranks of a process group, and the process set that carries its operations."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Store

from distrun.errors import CollectiveError, JobAbortedError
from distrun.host.ranks import list_ranks
from distrun.runtime import collectives
from distrun.runtime.process_sets import member_sets
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world
from distrun.torch import cuda
from distrun.torch_distributed import joining


class Members:
    """The members of one process group."""

    def __init__(self, ranks: Sequence[int], process_set: ProcessSet) -> None:
        """`ranks` are their ranks in the job, in the order of their ranks in the group; `process_set` has them."""
        self.ranks = ranks
        self.process_set = process_set
        self.unique_name = f"torch.distributed {joining.agreed_name()} {process_set.number}"
        """A name that no other group of these ranks ever has; the same on all of them."""
        rising = sorted(ranks)
        self.order = None if list(ranks) == rising else [rising.index(rank) for rank in ranks]
        """The place in the process set of each rank of the group, or None if both have the same order."""

    def leave(self, is_aborting: bool = False) -> None:
        """Leave the group. After the group of all ranks, leave the job: when all ranks do so or, if `is_aborting`, at
        once."""
        messages = sys.modules.get("distrun.runtime.collectives.point_to_point.messages")
        if messages is not None and world.is_initialized():  # otherwise there were no messages
            messages.leave(self.unique_name)
        if self.process_set is not global_process_set:
            with suppress(JobAbortedError):  # the job is gone, and the set with it
                member_sets.dissolve(self.process_set)
            return
        # Some rank may still work in another group, and need the coordinator, so leave together. A rank that fails does
        # not wait, and no rank waits for it.
        if joining.has_joined() and not is_aborting and sys.exc_info()[0] is None:
            with suppress(CollectiveError):
                collectives.barrier()
        joining.leave()


def all_ranks(store: Store, rank: int, size: int, timeout: timedelta) -> Members:
    """Return the members of a default group when all have joined. Raises as `joining.join` does."""
    joining.join(store, rank, size, timeout)
    _prepare()
    return Members(range(size), global_process_set)


def beside(store: Store, ranks: Sequence[int], rank: int, timeout: timedelta, name: str) -> Members:
    """Return the members of a group whose default group has another backend. Raises as `joining.join_beside` does.

    The world that the first such group joins stays until the process ends, since a later group may have the same ranks.
    """
    places = joining.join_beside(store, ranks, rank, timeout)
    _prepare()
    return some_ranks(places, name)


def _prepare() -> None:
    """Select this rank's GPU, and prepare for messages from other hosts."""
    device = world.device()
    is_chosen = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if device.name == cuda.CUDA and not is_chosen:
        cuda.bind(device.index)
    if world.topology().local_size < world.topology().size:
        from distrun.runtime.collectives.point_to_point.messages import prepare

        prepare()


def some_ranks(ranks: Sequence[int], name: str) -> Members:
    """Return the members of a group that torch calls `name`, when all have called this."""
    # The name has the ranks too: torch counts groups on each rank, so several disjoint groups can get the same name.
    return Members(ranks, member_sets.form(ranks, f"torch.distributed {name} of {list_ranks(sorted(ranks))}"))
