"""Barrier, join, and waiting for handles."""

from __future__ import annotations

from typing import Any

from distrun.errors import UsageError
from distrun.runtime.collectives.call import Call
from distrun.runtime.engine.autotuning import turns
from distrun.runtime.operations.handle import AnyHandle, Handle, HandleGroup
from distrun.runtime.operations.request import JOIN, JOIN_NAME, Request
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world

__all__ = ["barrier", "join", "poll", "synchronize"]


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> None:
    """Return when all ranks have called it.

    Args:
        process_set: the ranks that take part.
        name: how the ranks match the barrier. Unnamed barriers are matched by their order.

    Raises:
        NotInitializedError: before `init`.
        CollectiveError: as `allreduce` raises.
    """
    handle = Handle(world.engine(), Call("barrier", name, process_set=process_set).request("uint8", ()), ())
    handle.engine.run(handle).wait()


def join(process_set: ProcessSet = global_process_set) -> int:
    """Join: this rank has no more data. Returns when all ranks have joined.

    For data of unequal lengths: a rank joins when its data is used up. Until the last rank joins, the joined ranks take
    part in all operations that the others submit, with elements that change nothing: zeros in a sum, the limits of the
    dtype in a minimum or maximum, ones in a product, no rows in an allgather. An Average divides by the number of ranks
    that have not joined. In Horovod's mode all elements of joined ranks are zeros, and an Average divides by all ranks.

    Meanwhile an alltoall fails on the other ranks, and so does a broadcast from a rank that has joined.

    Args:
        process_set: the ranks that take part. A rank that has joined one set may still use others, in other threads.

    Returns:
        The last rank to join, which has seen the most data. Broadcast from it what all ranks should have.

    Raises:
        NotInitializedError: before `init`.
        CollectiveError: a rank is gone.
    """
    process_set.check_included()
    engine = world.engine()
    handle = Handle(engine, Request(JOIN, JOIN_NAME, "uint8", (), process_set=process_set.number), ())
    handle.given = world.rank()
    if not process_set.number:
        turns.note_join()
    engine.run(handle).wait()
    return int(handle.given)


def poll(handle: AnyHandle) -> bool:
    """Return whether an operation is done, on the GPU too if its tensors are there. Never waits.

    Args:
        handle: the result of a function ending in `_async` or `_async_`.

    Raises:
        UsageError: `handle` is not a handle.
    """
    _check(handle)
    return handle.poll()


def synchronize(handle: AnyHandle) -> Any:
    """Wait for an operation and return its result.

    For arrays on a GPU the current stream of this thread waits, and the host continues once the operation is queued.

    Args:
        handle: the result of a function ending in `_async` or `_async_`.

    Raises:
        UsageError: `handle` is not a handle.
        MismatchError: the ranks disagreed about the operation.
        StallError: a rank did not submit it within the stall timeout.
        JobAbortedError: a rank is gone.
    """
    _check(handle)
    return handle.wait()


def _check(handle: Any) -> None:
    if not isinstance(handle, (Handle, HandleGroup)):
        raise UsageError(f"{handle!r} is not a handle: give what an operation ending in _async returned")
