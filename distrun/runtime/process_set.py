"""Process sets: the ranks that take part in an operation."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex

from distrun.errors import UsageError
from distrun.runtime import world


class ProcessSet:
    """A set of ranks. Every operation is keyed by one; in this version there is a single set, the world.

    Horovod's `ProcessSet(ranks)` makes further ones; here that is refused until they are supported.
    """

    process_set_id: int
    """The number of the set in requests; 0 is the world."""

    def __init__(self, ranks: Iterable[int] | None = None) -> None:
        """Make the set of all ranks.

        Args:
            ranks: None, for all ranks of the job.

        Raises:
            UsageError: `ranks` is given.
        """
        if ranks is not None:
            raise UsageError(f"ProcessSet({list(ranks)}): only distrun.global_process_set is supported in this version")
        self.process_set_id = 0

    def __repr__(self) -> str:
        return "ProcessSet(all ranks)"

    def included(self) -> bool:
        """Return whether this rank belongs to the set."""
        return True

    def rank(self) -> int:
        """Return this rank's position in the set.

        Raises:
            NotInitializedError: before `init`.
        """
        return world.rank()

    def size(self) -> int:
        """Return the number of ranks in the set.

        Raises:
            NotInitializedError: before `init`.
        """
        return world.size()

    def check_root(self, root_rank: object) -> int:
        """Return `root_rank` as an int.

        Raises:
            UsageError: it is not a rank of this set.
        """
        size = self.size()
        root = operator.index(root_rank) if isinstance(root_rank, SupportsIndex) else -1
        if not 0 <= root < size:
            raise UsageError(f"root_rank={root_rank!r} is not a rank of this process set: it has ranks 0 to {size - 1}")
        return root


global_process_set = ProcessSet()
"""All ranks of the job."""

_BY_ID = {global_process_set.process_set_id: global_process_set}


def by_id(process_set_id: int) -> ProcessSet:
    """Return the process set with this number."""
    return _BY_ID[process_set_id]
