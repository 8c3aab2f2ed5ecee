"""The register of process sets, which has the same contents on all ranks.

Sets are registered by all ranks together, when the world begins (`distrun.init(process_sets=[...])`) or later
(`add_process_set`). When an elastic job begins a new generation, new ranks run their script up to `elastic.run`, and
survivors repeat what their script did up to there. So all have the same sets again, each with the ranks that its rule
returns for the new size. Sets that were added inside `elastic.run` are gone.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from distrun.contract.topology import local_ranks
from distrun.errors import UsageError
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.numbering import Numbering
from distrun.runtime.operations.request import ADD_PROCESS_SET, FORM_PROCESS_SET, REMOVE_PROCESS_SET, Request
from distrun.runtime.process_sets.process_set import ProcessSet, Rule, global_process_set
from distrun.runtime.world import world

__all__ = ["add_process_set", "get_process_set_ids_and_ranks", "remove_process_set"]

_registered: dict[int, ProcessSet] = {0: global_process_set}
_history: list[tuple[str, ProcessSet]] = []  # additions and removals in this world, in order
_kept: list[tuple[str, ProcessSet]] = []  # the part of the last world's history that the next generation repeats
_places = Numbering()  # counts the entries of the history
_HOST = "host"  # the third kind of entry in a history
_host_set = ProcessSet(lambda size: ())  # the set of this rank's host, which gets its ranks when it is registered


def by_id(process_set_id: int) -> ProcessSet:
    """Return the process set with this number.

    Raises:
        UsageError: there is no such set.
    """
    process_set = _registered.get(process_set_id)
    if process_set is None:
        known = ", ".join(map(str, sorted(_registered)))
        raise UsageError(f"process_set_id={process_set_id!r} is not registered (there are {known})")
    return process_set


def add_process_set(process_set: ProcessSet | Iterable[int] | Rule) -> ProcessSet:
    """Register a set of ranks, so that operations can be submitted to it. Returns when all ranks have called this.

    Every rank of the job has to call it, including the ranks outside the set, with the same ranks and in the same order
    relative to other calls.

    Args:
        process_set: a set that is not registered. Or, to create one, the ranks, or a function that returns them for a
            number of ranks.

    Returns:
        The set, which now has its `process_set_id`.

    Raises:
        NotInitializedError: before `init`.
        UsageError: the set is empty, contains a rank that the job does not have, or has the same ranks as another set.
            (In later generations of an elastic job a set may contain such ranks. Then it is an error to use it.)
        MismatchError: the ranks of the job disagree about the set.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    elif process_set.process_set_id is not None:
        raise UsageError(f"{process_set!r} is registered already: use it, or make another of other ranks")
    if process_set.rule is None and not process_set.ranks:
        raise UsageError(
            f"{process_set!r} is made of a communicator: give it to distrun.init(process_sets=[...]), where all ranks "
            "can exchange what they know of theirs"
        )
    return register(process_set, process_set.ranks_of(world.size()))


def decided(kind: str, name: str, shape: tuple[int, ...]) -> int:
    """Run an operation on process sets, whose only shape is `shape`. Return the set's number in requests."""
    handle = Handle(world.engine(), Request(kind, name, "int64", (shape,)), ())
    handle.engine.run(handle).wait()
    return handle.given  # type: ignore[no-any-return]


def register(process_set: ProcessSet, ranks: tuple[int, ...]) -> ProcessSet:
    """Register a set with these `ranks`, which are in rising order. See `add_process_set`."""
    is_absent = bool(ranks) and not 0 <= ranks[0] <= ranks[-1] < world.size()
    if is_absent and world.generation() == 1:
        raise UsageError(f"ProcessSet({list(ranks)}): the job has ranks 0 to {world.size() - 1}")
    number = _number_of_equal(process_set, ranks)
    if number is None and ranks and not is_absent:
        number = decided(ADD_PROCESS_SET, ADD_PROCESS_SET, ranks)
    process_set._ranks = ranks
    process_set.is_absent = is_absent
    process_set.number = number or 0
    _enter(ADD_PROCESS_SET, process_set)
    return process_set


def _enter(kind: str, process_set: ProcessSet) -> None:
    process_set.process_set_id = 1 + sum(known != REMOVE_PROCESS_SET for known, _ in _history)
    _registered[process_set.process_set_id] = process_set
    _note(kind, process_set)


def _number_of_equal(process_set: ProcessSet, ranks: tuple[int, ...]) -> int | None:
    """Return the number of a registered set that has these ranks, or None."""
    for process_set_id, known in _registered.items():
        if known is not _host_set and tuple(known.ranks or ()) == ranks and not known.is_absent:
            if process_set.rule is None and known.rule is None and world.generation() == 1:
                name = (
                    f"the one with process_set_id {process_set_id}" if process_set_id else "distrun.global_process_set"
                )
                raise UsageError(
                    f"ProcessSet({list(ranks)}): there is a process set of these ranks already, {name}: use it"
                )
            return known.number
    return None


def host_set() -> ProcessSet:
    """Return the set of the ranks of this rank's host. Returns when all ranks have called this.

    Every rank of the job has to call it, in the same order relative to other calls that register sets. Later calls
    return the same set. In an elastic job it contains the ranks on this host in each generation.

    Raises:
        NotInitializedError: before `init`.
        JobAbortedError: a rank is gone.
    """
    if _host_set.process_set_id is None:
        _register_host_set()
    return _host_set


def _register_host_set() -> None:
    """Register the set of this host. Its ranks form it by themselves: other hosts have other sets of the same id."""
    place = world.topology()
    number = 0
    ranks: tuple[int, ...] = tuple(range(place.size))
    if place.local_size < place.size:
        own = np.array([place.local_rank, place.local_size, place.cross_rank], np.int64)
        places = Handle(world.engine(), Request("allgather", "process_sets.hosts", "int64", ((-1, 3),)), [own])
        places.engine.run(places).wait()
        ranks = local_ranks(places.outputs[0].reshape(-1, 3).tolist(), place.rank)
        number = decided(FORM_PROCESS_SET, f"process set of the host of rank {ranks[0]}", ranks)
    _host_set._ranks, _host_set.number, _host_set.is_absent = ranks, number, False
    _enter(_HOST, _host_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set. It may be registered again. Returns when all ranks of the job have called this.

    Args:
        process_set: the set. Operations that were submitted to it must be complete.

    Returns:
        Whether it was removed. The world, the set of a host, and sets that are not registered cannot be.

    Raises:
        NotInitializedError: before `init`.
        MismatchError: the ranks of the job want to remove different sets.
    """
    world.current()
    process_set_id = process_set.process_set_id
    if (
        process_set_id is None
        or process_set in (global_process_set, _host_set)
        or _registered.get(process_set_id) is not process_set
    ):
        return False
    number = process_set.number
    if [known.number for known in _registered.values()].count(number) == 1:  # no other set shares it
        decided(REMOVE_PROCESS_SET, REMOVE_PROCESS_SET, (number,))
    del _registered[process_set_id]
    process_set.process_set_id = None
    _note(REMOVE_PROCESS_SET, process_set)
    return True


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Return the ranks of every registered process set by the set's number. The world has number 0."""
    world.current()
    return {process_set_id: process_set.ranks or [] for process_set_id, process_set in _registered.items()}


# Generations ----------------------------------------------------------------------------------------------------------


def _note(kind: str, process_set: ProcessSet) -> None:
    _history.append((kind, process_set))
    _places.next()


def _forget() -> None:
    """Unregister all sets, because the world was left."""
    # Before a new generation the numberings have been set back to `elastic.run`. If that generation ended before
    # everything was repeated in it, its history is incomplete, and the older one is kept.
    if len(_history) >= _places.count:
        _kept[:] = _history[: _places.count]
    _history.clear()
    _places.restart()
    for process_set_id, process_set in list(_registered.items()):
        if process_set_id:
            process_set.process_set_id = None
            del _registered[process_set_id]


def _register_again() -> None:
    """Repeat the registrations that new ranks make in their scripts."""
    for kind, process_set in _kept:
        if kind == ADD_PROCESS_SET:
            register(process_set, process_set.ranks_of(world.size()))
        elif kind == _HOST:
            _register_host_set()
        else:
            remove_process_set(process_set)


world.on_leaving(_forget)
world.on_joining(_register_again)
