"""Process sets: the ranks that take part in an operation.

Every operation belongs to a process set. The set of all ranks always exists. Other sets are registered by all ranks
together, see `process_sets`. The operations of all sets are decided in one order, so ranks may use overlapping sets at
the same time without a deadlock. The names and meanings are Horovod's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from distrun.errors import UsageError
from distrun.host.ranks import list_ranks
from distrun.runtime.world import world

__all__ = ["ProcessSet", "global_process_set"]

Rule = Callable[[int], Iterable[int]]
"""Returns the ranks of a set, given the number of ranks of the job: `lambda size: range(0, size, 2)`. In an elastic job
it is called in each generation. It must return the same on all ranks."""

_NONE: Any = None


class ProcessSet:
    """A set of ranks, for the `process_set` argument of operations. Only its ranks call these operations.

    It can be used once it is registered, by `distrun.init(process_sets=[...])` or `add_process_set`. Before that, and
    after it was removed or the job was left, `process_set_id` is None, and the methods return None.
    """

    process_set_id: int | None = None
    """The number of the set, the same in all generations of an elastic job. 0 is the world."""
    number = 0
    """The number in requests of the present world. Sets with the same ranks share it."""
    rule: Rule | None = None
    """Returns its ranks for a size of the job, if the set was created from a rule."""
    is_absent = False
    """Whether it contains ranks that the present generation of an elastic job does not have."""
    mpi_comm: Any = None
    """The communicator that the set was created from, if any."""

    def __init__(self, ranks_or_comm: Iterable[int] | Rule | Any) -> None:
        """Describe a set.

        Args:
            ranks_or_comm: the ranks, in any order. Or a function that returns them for a number of ranks, which elastic
                jobs call in each generation. Or an mpi4py communicator, whose processes call `distrun.init` together
                with this set.

        Raises:
            UsageError: `ranks_or_comm` is none of these, or contains a rank twice.
        """
        self._ranks: tuple[int, ...] = ()
        if callable(ranks_or_comm):
            self.rule = ranks_or_comm
        elif hasattr(ranks_or_comm, "Get_rank") and hasattr(ranks_or_comm, "allgather"):
            self.mpi_comm = ranks_or_comm
        else:
            self._ranks = _sorted(ranks_or_comm)

    @property
    def ranks(self) -> list[int] | None:
        """The ranks of the set in rising order. None while only a communicator or a rule defines them."""
        return list(self._ranks) or None

    def __repr__(self) -> str:
        which = "not registered" if self.process_set_id is None else f"number {self.process_set_id}"
        return f"ProcessSet({self.ranks or self.mpi_comm or self.rule}, {which})"

    # The return types are the ones for a registered set. Code that gets None has a mistake that would show up anyway.

    def included(self) -> bool:
        """Return whether this rank belongs to the set. None if the set is not registered."""
        if self.process_set_id is None:
            return _NONE  # type: ignore[no-any-return]
        self._check_present()
        return world.rank() in self._ranks

    def rank(self) -> int:
        """Return this rank's position in the set. None if the set is not registered.

        Raises:
            UsageError: this rank does not belong to the set.
        """
        if self.process_set_id is None:
            return _NONE  # type: ignore[no-any-return]
        self.check_included()
        return self._ranks.index(world.rank())

    def size(self) -> int:
        """Return the number of ranks in the set. None if the set is not registered."""
        if self.process_set_id is None:
            return _NONE  # type: ignore[no-any-return]
        self._check_present()
        return len(self._ranks)

    def stays_one(self) -> bool:
        """Return whether this rank is the set's only one, and no later generation can change that.

        Then a graph or compiled program may be built without collectives.
        """
        return self.size() == 1 and not world.is_elastic()

    def ranks_of(self, size: int) -> tuple[int, ...]:
        """Return the ranks of the set in a job with `size` ranks, in rising order.

        Raises:
            UsageError: its rule returns something that is not a set of these ranks.
        """
        if self.rule is None:
            return self._ranks
        given = self.rule(size)
        ranks = _sorted(given, may_be_empty=True)
        if ranks and not 0 <= ranks[0] <= ranks[-1] < size:
            raise UsageError(
                f"the rule of a process set returns {list(ranks)} for a job with {size} ranks: let it return some of 0 "
                f"to {size - 1}"
            )
        return ranks

    def _check_present(self) -> None:
        if self.is_absent:
            raise UsageError(
                f"{self!r} does not exist in this generation of the job, which has ranks 0 to {world.size() - 1}: "
                "describe it by a rule, such as distrun.ProcessSet(lambda size: range(size // 2))"
            )

    # For the operations -----------------------------------------------------------------------------------------------

    def check_included(self) -> None:
        """Raise an error unless the set is registered and this rank belongs to it.

        Raises:
            UsageError: it is not, or this rank does not.
        """
        if self.process_set_id is None:
            raise UsageError(
                f"{self!r}: give it to distrun.init(process_sets=[...]) or to distrun.add_process_set(...), on all "
                "ranks, before it is used"
            )
        self._check_present()
        if world.rank() not in self._ranks:
            raise UsageError(
                f"rank {world.rank()} does not belong to the process set of {list_ranks(self._ranks)}: let its ranks "
                "alone submit operations to it (`if process_set.included(): ...`)"
            )

    def check_root(self, root_rank: object) -> int:
        """Return `root_rank`, a rank of the job, as an int.

        Raises:
            UsageError: it is not a rank of this set, or the set cannot be used.
        """
        self.check_included()
        members = self._ranks
        try:
            root = operator.index(root_rank)  # type: ignore[arg-type]
        except TypeError:
            root = -1
        if root not in members:
            raise UsageError(f"root_rank={root_rank!r} is not a rank of this process set: it has {list_ranks(members)}")
        return root


class _World(ProcessSet):
    """All ranks of the job. It is always registered, and takes its answers from the world."""

    process_set_id: int = 0

    def __init__(self) -> None:
        """Make the set."""

    @property
    def _ranks(self) -> Sequence[int]:  # type: ignore[override]
        return range(world.size())

    @property
    def ranks(self) -> list[int] | None:
        """All ranks, or None before `init`."""
        return list(range(world.size())) if world.is_initialized() else None

    def __repr__(self) -> str:
        return "ProcessSet(all ranks)"

    def included(self) -> bool:
        """Return True."""
        return True

    def rank(self) -> int:
        return world.rank()

    def size(self) -> int:
        return world.size()

    def check_included(self) -> None:
        """Do nothing: every rank belongs to the world."""


global_process_set: ProcessSet = _World()
"""All ranks of the job."""


def _sorted(ranks: Any, may_be_empty: bool = False) -> tuple[int, ...]:
    try:
        found = sorted(operator.index(rank) for rank in ranks)
    except TypeError:
        raise UsageError(
            f"ProcessSet({ranks!r}): give ranks as whole numbers, a function of the size, or a communicator of mpi4py"
        ) from None
    if (not found and not may_be_empty) or len(set(found)) < len(found):
        raise UsageError(f"ProcessSet({found}): give at least one rank, and each of them once")
    return tuple(found)
