"""Process sets that their own ranks form, without a word from the others; torch.distributed makes its groups so.

`add_process_set` is a call of all ranks of the job. Here the ranks that do not belong to the set call nothing: their
engines take part when the coordinator says so.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from distrun.errors import UsageError
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import DISSOLVE_PROCESS_SET, FORM_PROCESS_SET, Request
from distrun.runtime.process_sets.process_set import ProcessSet
from distrun.runtime.world import world

_formed: weakref.WeakSet[ProcessSet] = weakref.WeakSet()  # in this world


def form(ranks: Iterable[int], name: str) -> ProcessSet:
    """Form a process set. Returns when all its ranks have called this.

    Args:
        ranks: its ranks in the world, this one among them, in any order. There may be other sets of the same ranks.
        name: what the ranks call the set; no other set that is being formed has that name.

    Returns:
        The set, which can be used at once, until this rank dissolves it or leaves the world. It is not in the register:
        `get_process_set_ids_and_ranks` does not know it, and graphs cannot use it.

    Raises:
        NotInitializedError: before `init`.
        UsageError: a rank is none of the job's, or this rank is not among them; or there are too many sets.
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
        request = Request(FORM_PROCESS_SET, f"process set {name}", "int64", (members,))
        handle = Handle(world.engine(), request, ())
        handle.engine.run(handle).wait()
        number = handle.given
    process_set.number = number
    process_set.process_set_id = -1 - number  # no number of the register
    _formed.add(process_set)
    return process_set


def dissolve(process_set: ProcessSet) -> None:
    """Say that this rank has finished with a set that `form` has made; returns at once.

    Operations of the set must be complete here. What it holds is freed when all its ranks have said so and another set
    is formed, or with the world. Does nothing if the world was left, or the set was dissolved here before.

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
