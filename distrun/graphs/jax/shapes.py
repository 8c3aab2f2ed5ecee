"""The kinds of collectives, and the shapes of their results, which a graph must know before it runs."""

from __future__ import annotations

from collections.abc import Sequence

from distrun.runtime.collectives.call import Call, check_rows, rows_per_rank

PROBE = "probe"
"""A kind that is not a collective: it doubles its arrays without other ranks, to test whether collectives work."""

REDUCING = ("allreduce", "broadcast", PROBE)
"""The kinds whose results have the shapes of their inputs, and may use their memory."""

Shape = tuple[int, ...]


def result_shape(collective: Call, shape: Sequence[int]) -> Shape:
    """Return the shape of a result for an input of `shape`, provided that all ranks have the same shape. Refuse what
    has no rows, or rows that cannot be divided evenly, where the kind needs them.
    """
    kind, shape = collective.kind, tuple(shape)
    if kind in REDUCING:
        return shape
    check_rows(kind, [shape])
    size = collective.process_set.size()
    if kind == "allgather":
        return (shape[0] * size, *shape[1:])
    if kind == "alltoall":
        rows_per_rank(shape[0], None, size)
        return shape
    rows, more = divmod(shape[0], size)
    return (rows + (collective.process_set.rank() < more), *shape[1:])
