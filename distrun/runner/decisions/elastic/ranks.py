"""The ranks of the next generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def in_rank_order(survivors: Mapping[int, int], newcomers: Sequence[int]) -> list[int]:
    """Return the processes of the next generation in the order of their ranks.

    The survivor with the lowest rank becomes rank 0, which the others find first and which is likeliest to have what
    they lack. The others keep their ranks where the new size allows it, so that what depends on a rank, such as open
    files, stays where it is; else they fill gaps, in order. Newcomers fill the rest.

    Args:
        survivors: process -> its present rank.
        newcomers: processes without one.
    """
    size = len(survivors) + len(newcomers)
    order: list[int | None] = [None] * size
    moved: list[int] = []
    for process in sorted(survivors, key=survivors.__getitem__):
        rank = survivors[process] if order and order[0] is not None else 0
        if rank < size:
            order[rank] = process
        else:
            moved.append(process)
    rest = iter((*moved, *newcomers))
    return [next(rest) if process is None else process for process in order]
