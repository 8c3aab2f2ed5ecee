"""Process sets that their own ranks form, without a word from the others; torch.distributed makes its groups so.

`add_process_set` is a call of all ranks of the job. Here the ranks that do not belong to the set call nothing: their
engines take part when the coordinator says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from distrun.runtime.process_set import ProcessSet


def form(ranks: Sequence[int], name: str) -> ProcessSet:
    """Form a process set. Returns when all its ranks have called this.

    Args:
        ranks: its ranks in the world, this one among them, in any order. There may be other sets of the same ranks.
        name: what the ranks call the set; no other set that is being formed or dissolved has that name.

    Returns:
        The set, which can be used at once. It has no `process_set_id` in the register.

    Raises:
        NotInitializedError: before `init`.
        UsageError: a rank is none of the job's, or this rank is not among them.
        CollectiveError: a rank is gone, or gives other ranks under this name.
    """
    raise NotImplementedError


def dissolve(process_set: ProcessSet, name: str) -> None:
    """Say that this rank has finished with a set that `form` has made; returns at once.

    What the set holds is freed when all its ranks have said so.
    """
    raise NotImplementedError
