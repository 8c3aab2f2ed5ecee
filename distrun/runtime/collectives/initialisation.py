"""Joins the job: the world and its first process sets."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from distrun.errors import UsageError
from distrun.host.ranks import list_ranks
from distrun.runtime.collectives.objects import allgather_object
from distrun.runtime.process_sets.process_set import ProcessSet, Rule
from distrun.runtime.process_sets.process_sets import add_process_set, register
from distrun.runtime.world import world

DYNAMIC = "dynamic"
"""Horovod's scripts give this as `process_sets` if they add sets later. Here sets can always be added."""


def init(comm: Any = None, process_sets: Sequence[ProcessSet | Sequence[int] | Rule] | str | None = None) -> None:
    """Join the job this process was started in: afterwards rank, size and the collectives are available.

    Works under distrun, mpirun (Open MPI, MPICH), srun and torchrun. A plain `python train.py` is a world of one.
    Blocks until all ranks have joined. A second call while initialised only registers the `process_sets` that are not
    registered yet. After `shutdown`, and after a call that failed, it may be called again.

    Args:
        comm: the world, if it is not the whole job, in jobs on one host (use process sets in others). A list of the
            job's ranks, where the first becomes rank 0, and so on, or a communicator of mpi4py, whose processes become
            the world in its order.
        process_sets: sets to register at once, the same ones in the same order on all ranks. "dynamic" is accepted for
            Horovod's sake: sets can always be added later.

    Raises:
        UsageError: an environment variable or an argument has an impossible value, or the process is already in another
            world than `comm`.
        BootstrapError: the other ranks did not join within the start timeout.
        MismatchError: the ranks give different process sets.
    """
    sets = _sets(process_sets)
    ranks = None if comm is None else _ranks_of(comm)
    if world.join_world(ranks):
        try:
            _register(sets)
        except BaseException as error:
            world.leave(f"its init() ended with {type(error).__name__}: {error}")
            raise
    else:
        _check_world(ranks)
        _register([each for each in sets if not isinstance(each, ProcessSet) or each.process_set_id is None])


def _sets(process_sets: Any) -> Sequence[ProcessSet | Sequence[int] | Rule]:
    if process_sets is None or process_sets == DYNAMIC:
        return []
    if isinstance(process_sets, str) or not hasattr(process_sets, "__iter__"):
        raise UsageError(f"process_sets={process_sets!r}: give a list of distrun.ProcessSet, or {DYNAMIC!r}")
    return list(process_sets)


def _ranks_of(comm: Any) -> tuple[int, ...] | None:
    """Return the job's ranks that `comm` names, in its order, or None for all of them."""
    from distrun.runtime.world.bootstrap.join import place_in_job

    if hasattr(comm, "allgather"):
        return tuple(comm.allgather(place_in_job().rank))
    try:
        ranks = tuple(operator.index(rank) for rank in comm)
    except TypeError:
        raise UsageError(f"comm={comm!r}: give a list of ranks, or a communicator of mpi4py") from None
    return ranks or None  # an empty list means all ranks, as in Horovod


def _check_world(ranks: tuple[int, ...] | None) -> None:
    """Raise UsageError if the present world is not the one of `ranks`."""
    from distrun.runtime.world.bootstrap.join import place_in_job

    if ranks is None or world.is_elastic():
        return
    job, ours = place_in_job().rank, (world.rank(), world.size())
    if job not in ranks or ours != (ranks.index(job), len(ranks)):
        raise UsageError(
            f"init(comm=...): this process is rank {ours[0]} of {ours[1]} already, in another world than that of ranks "
            f"{list_ranks(ranks)}: call shutdown() first"
        )


def _register(sets: Sequence[ProcessSet | Sequence[int] | Rule]) -> None:
    for process_set in sets:
        if isinstance(process_set, ProcessSet) and process_set.mpi_comm is not None:
            _register_communicator(process_set)
        else:
            add_process_set(process_set)


def _register_communicator(process_set: ProcessSet) -> None:
    """Register the sets of all communicators that the ranks give at this position, in the order of their lowest ranks.

    Ranks may give different communicators, but all of them must register the same sets in the same order.
    """
    ranks = tuple(sorted(process_set.mpi_comm.allgather(world.rank())))
    for members in sorted(set(allgather_object(ranks))):
        register(process_set if members == ranks else ProcessSet(members), members)
