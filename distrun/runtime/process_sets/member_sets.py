"""Process sets that only their own ranks form, as torch.distributed makes its groups.

`add_process_set` is called by all ranks of the job. Here the ranks outside the set call nothing. Their engines take
part when the coordinator decides so.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from distrun.errors import UsageError
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import DISSOLVE_PROCESS_SET, FORM_PROCESS_SET, Request
from distrun.runtime.process_sets.process_set import ProcessSet
from distrun.runtime.process_sets.process_sets import decided
from distrun.runtime.world import world

_formed: weakref.WeakSet[ProcessSet] = weakref.WeakSet()  # in this world


def form(ranks: Iterable[int], name: str) -> ProcessSet:
    """Form a process set. Returns when all its ranks have called this.

    Args:
        ranks: its ranks in the world, including this one, in any order. Other sets may have the same ranks.
        name: the name by which the ranks match their calls. No other set that is being formed may have it.

    Returns:
        The set, which can be used at once, until this rank dissolves it or leaves the world. It is not registered:
        `get_process_set_ids_and_ranks` does not contain it, and graphs cannot use it.

    Raises:
        NotInitializedError: before `init`.
        UsageError: `ranks` has a rank that is not in the job, or lacks this rank, or there are too many sets.
        MismatchError: the ranks give different ranks under this name.
        StallError: a rank did not make the call within the stall timeout.
        JobAbortedError: a rank is gone.
    """
    process_set = ProcessSet(ranks)
    members = tuple(process_set.ranks or ())
    if world.rank() not in members or not 0 <= members[0] <= members[-1] < world.size():
        raise UsageError(
            f"process set {name!r} of ranks {list(members)} cannot be formed by rank {world.rank()} of "
            f"{world.size()}: give ranks of the job, this one among them"
        )
    number = 0
    if world.size() > 1:
        number = decided(FORM_PROCESS_SET, f"process set {name}", members)
    process_set.number = number
    process_set.process_set_id = -1 - number  # negative, so never the number of a registered set
    _formed.add(process_set)
    return process_set


def dissolve(process_set: ProcessSet) -> None:
    """Release a set that was made by `form`, as far as this rank is concerned. Returns at once.

    Operations of the set must be complete on this rank. The set's resources are freed when all its ranks have called
    this and another set is formed, or at the end of the world. Does nothing if the world was left, or this rank has
    called it before.

    Raises:
        JobAbortedError: the job has failed.
    """
    if process_set not in _formed:
        return
    _withdraw(process_set)
    if world.size() > 1:
        number = process_set.number
        handle = Handle(world.engine(), Request(DISSOLVE_PROCESS_SET, str(number), "int64", ((number,),)), ())
        handle.engine.submit(handle)


def _withdraw(process_set: ProcessSet) -> None:
    _formed.discard(process_set)
    process_set.process_set_id = None


def _withdraw_all() -> None:
    for process_set in list(_formed):
        _withdraw(process_set)


world.on_leaving(_withdraw_all)
