"""Process sets: the ranks that take part in an operation.

Every operation belongs to one. The set of all ranks is always there; further ones are registered by all ranks together,
when the world begins (`distrun.init(process_sets=[...])`) or later (`add_process_set`). Their operations are decided in
one order with those of the world, so ranks may use overlapping sets at once without waiting for each other in circles.
The names and meanings are Horovod's.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

from distrun.errors import UsageError
from distrun.runtime import world
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import ADD_PROCESS_SET, REMOVE_PROCESS_SET, Request
from distrun.runtime.topology import list_ranks

__all__ = ["ProcessSet", "add_process_set", "get_process_set_ids_and_ranks", "global_process_set", "remove_process_set"]


_NONE: Any = None


class ProcessSet:
    """A set of ranks, for the `process_set` argument of operations on the ranks that belong to it.

    It can be used once it is registered: given to `distrun.init(process_sets=[...])` or to `add_process_set`. Before,
    and after it was removed or the job was left, `process_set_id` is None, and so is what the methods return.
    """

    process_set_id: int | None = None
    """The number of the set; 0 is the world."""
    mpi_comm: Any = None
    """The communicator that the set was made of, if it was."""

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        """Describe a set.

        Args:
            ranks_or_comm: the ranks, in any order; or a communicator of mpi4py, whose processes call `distrun.init`
                together with this set.

        Raises:
            UsageError: `ranks_or_comm` is neither, or has a rank twice.
        """
        self._ranks: tuple[int, ...] = ()
        if hasattr(ranks_or_comm, "Get_rank") and hasattr(ranks_or_comm, "allgather"):
            self.mpi_comm = ranks_or_comm
        else:
            self._ranks = _sorted(ranks_or_comm)

    @property
    def ranks(self) -> list[int] | None:
        """The ranks that belong to the set, rising; None while only a communicator knows them."""
        return list(self._ranks) or None

    def __repr__(self) -> str:
        which = "not registered" if self.process_set_id is None else f"number {self.process_set_id}"
        return f"ProcessSet({self.ranks or self.mpi_comm}, {which})"

    # The types of these are those of a registered set: what asks for another is about to go wrong anyway.

    def included(self) -> bool:
        """Return whether this rank belongs to the set; None if the set is not registered."""
        if self.process_set_id is None:
            return _NONE  # type: ignore[no-any-return]
        return world.rank() in self._ranks

    def rank(self) -> int:
        """Return this rank's position in the set; None if the set is not registered.

        Raises:
            UsageError: this rank does not belong to it.
        """
        if self.process_set_id is None:
            return _NONE  # type: ignore[no-any-return]
        self.check_included()
        return self._ranks.index(world.rank())

    def size(self) -> int:
        """Return the number of ranks in the set; None if the set is not registered."""
        if self.process_set_id is None:
            return _NONE  # type: ignore[no-any-return]
        return len(self._ranks)

    # For the operations -----------------------------------------------------------------------------------------------

    def check_included(self) -> None:
        """Refuse an operation of a set that is not registered, or that this rank does not belong to.

        Raises:
            UsageError: it is one of these.
        """
        if self.process_set_id is None:
            raise UsageError(
                f"{self!r}: give it to distrun.init(process_sets=[...]) or to distrun.add_process_set(...), on all "
                "ranks, before it is used"
            )
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
        root = operator.index(root_rank) if isinstance(root_rank, SupportsIndex) else -1
        if root not in members:
            raise UsageError(f"root_rank={root_rank!r} is not a rank of this process set: it has {list_ranks(members)}")
        return root


class _World(ProcessSet):
    """All ranks of the job. What it says is the world's, so there is nothing to register."""

    process_set_id: int = 0

    def __init__(self) -> None:
        """Make the set."""

    @property
    def _ranks(self) -> Sequence[int]:  # type: ignore[override]
        return range(world.size())

    @property
    def ranks(self) -> list[int] | None:
        """All ranks; None before `init`."""
        return list(range(world.size())) if world.is_initialized() else None

    def __repr__(self) -> str:
        return "ProcessSet(all ranks)"

    def included(self) -> bool:
        """Return True."""
        return True

    def rank(self) -> int:
        """Return this process's rank.

        Raises:
            NotInitializedError: before `init`.
        """
        return world.rank()

    def size(self) -> int:
        """Return the number of ranks.

        Raises:
            NotInitializedError: before `init`.
        """
        return world.size()

    def check_included(self) -> None:
        """Refuse nothing: every rank belongs to the world."""


global_process_set: ProcessSet = _World()
"""All ranks of the job."""

_registered: dict[int, ProcessSet] = {0: global_process_set}


def by_id(process_set_id: int) -> ProcessSet:
    """Return the process set with this number.

    Raises:
        UsageError: there is none.
    """
    process_set = _registered.get(process_set_id)
    if process_set is None:
        known = ", ".join(map(str, sorted(_registered)))
        raise UsageError(f"process_set_id={process_set_id!r} is not registered (there are {known})")
    return process_set


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Register a set of ranks, so that operations can be submitted to it. Returns when all ranks have called this.

    Every rank of the job calls it, also those that do not belong to the set, with the same ranks and in the same order
    with respect to other calls.

    Args:
        process_set: a set that is not registered, or the ranks to make one of.

    Returns:
        The set, which has its `process_set_id` now.

    Raises:
        NotInitializedError: before `init`.
        UsageError: the set is empty, has a rank that the job has not, or there is one of the same ranks already.
        MismatchError: the ranks of the job disagree about the set.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    elif process_set.process_set_id is not None:
        raise UsageError(f"{process_set!r} is registered already: use it, or make another of other ranks")
    ranks = process_set._ranks
    if not ranks:
        raise UsageError(
            f"{process_set!r} is made of a communicator: give it to distrun.init(process_sets=[...]), where all ranks "
            "can exchange what they know of theirs"
        )
    return register(process_set, ranks)


def register(process_set: ProcessSet, ranks: tuple[int, ...]) -> ProcessSet:
    """Register a set as that of `ranks`, which rise; see `add_process_set`."""
    _check_ranks(ranks)
    handle = Handle(world.engine(), Request(ADD_PROCESS_SET, ADD_PROCESS_SET, "int64", (ranks,)), ())
    handle.engine.run(handle).wait()
    process_set._ranks = ranks
    process_set.process_set_id = handle.given
    _registered[handle.given] = process_set
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; it may be registered again. Returns when all ranks of the job have called this.

    Args:
        process_set: the set; operations that were submitted to it must be complete.

    Returns:
        Whether it was removed. The world is not, nor is a set that is not registered.

    Raises:
        NotInitializedError: before `init`.
        MismatchError: the ranks of the job want to remove different sets.
    """
    engine = world.engine()
    process_set_id = process_set.process_set_id
    if (
        process_set_id is None
        or process_set is global_process_set
        or _registered.get(process_set_id) is not process_set
    ):
        return False
    shapes = ((process_set_id,),)
    handle = Handle(engine, Request(REMOVE_PROCESS_SET, REMOVE_PROCESS_SET, "int64", shapes), ())
    engine.run(handle).wait()
    del _registered[process_set_id]
    process_set.process_set_id = None
    return True


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Return the ranks of every process set that is registered, by the set's number; the world is number 0."""
    world.current()
    return {process_set_id: process_set.ranks or [] for process_set_id, process_set in _registered.items()}


def _sorted(ranks: Any) -> tuple[int, ...]:
    try:
        found = sorted(operator.index(rank) for rank in ranks)
    except TypeError:
        raise UsageError(
            f"ProcessSet({ranks!r}): give the ranks as whole numbers, or a communicator of mpi4py"
        ) from None
    if not found or len(set(found)) < len(found):
        raise UsageError(f"ProcessSet({found}): give at least one rank, and each of them once")
    return tuple(found)


def _check_ranks(ranks: tuple[int, ...]) -> None:
    size = world.size()
    if not 0 <= ranks[0] <= ranks[-1] < size:
        raise UsageError(f"ProcessSet({list(ranks)}): the job has ranks 0 to {size - 1}")
    for process_set_id, known in _registered.items():
        if tuple(known._ranks) == ranks:
            name = (
                "distrun.global_process_set" if process_set_id == 0 else f"the one with process_set_id {process_set_id}"
            )
            raise UsageError(
                f"ProcessSet({list(ranks)}): there is a process set of these ranks already, {name}: use it"
            )


def _forget() -> None:
    """The job was left: no set is registered any more."""
    for process_set_id, process_set in list(_registered.items()):
        if process_set_id:
            process_set.process_set_id = None
            del _registered[process_set_id]


world.on_leaving(_forget)
