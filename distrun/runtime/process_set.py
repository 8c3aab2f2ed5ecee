"""Process sets: the ranks that take part in an operation."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex

from distrun.errors import UsageError
from distrun.runtime import world


class ProcessSet:
    """A set of ranks. Everything in the engine is keyed by process set; for now there is one, the world.

    Horovod's `ProcessSet(ranks)` makes further ones; here that is refused, with a sentence, until they are supported.
    """

    def __init__(self, ranks: Iterable[int] | None = None) -> None:
        """`ranks`: None for all of them.

        Raises:
            UsageError: `ranks` is given.
        """
        if ranks is not None:
            raise UsageError(f"ProcessSet({list(ranks)}): only distrun.global_process_set is supported in this version")
        self.process_set_id = 0

    def __repr__(self) -> str:
        return "ProcessSet(all ranks)"

    def included(self) -> bool:
        """Whether this rank belongs to the set."""
        return True

    def rank(self) -> int:
        """This rank's position in the set."""
        return world.rank()

    def size(self) -> int:
        """The number of ranks in the set."""
        return world.size()

    def check_root(self, root_rank: object) -> int:
        """`root_rank` as an int.

        Raises:
            UsageError: it is no rank of this set.
        """
        size = self.size()
        root = operator.index(root_rank) if isinstance(root_rank, SupportsIndex) else -1
        if not 0 <= root < size:
            raise UsageError(f"root_rank={root_rank!r} is no rank of this process set: it has ranks 0 to {size - 1}")
        return root


global_process_set = ProcessSet()
"""All ranks of the job."""
