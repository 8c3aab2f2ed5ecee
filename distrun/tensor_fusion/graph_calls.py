"""Which gradients go into one call of a collective inside a graph, and which of them are concatenated for it.

A graph pays for every tensor that it hands to a call, and for every byte that it concatenates: small tensors are put
together in the graph, large ones are handed over as they are. One call takes everything, unless communication may overlap with
the backward pass: then there are several, in the order in which their gradients will be there.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from distrun.tensor_fusion.buckets import Item, expected_order, plan

SMALL = 64 << 10
"""Bytes up to which a gradient is concatenated with others."""


@dataclass(frozen=True)
class GraphCall:
    """One call: places in the list of gradients that are handed over alone, and lists of places that are concatenated."""

    alone: tuple[int, ...]
    joined: tuple[tuple[int, ...], ...]


def plan_calls(items: Sequence[Item | None], threshold: int | None = None, small: int = SMALL) -> list[GraphCall]:
    """The calls for `items`, in the order in which to make them.

    An item of unknown size is None, and travels alone. With a `threshold` (bytes), calls are buckets of at most so
    much, from the last gradient to the first; without, there is one call. One call may hold several kinds.
    """
    if not items:
        return []
    if threshold is None:
        return [_call(items, range(len(items)), small)]
    sized = [Item(0, None) if item is None else Item(item.nbytes, None) for item in items]
    return [_call(items, sorted(bucket), small) for bucket in plan(sized, expected_order(len(items)), threshold)]


def _call(items: Sequence[Item | None], places: Sequence[int], small: int) -> GraphCall:
    alone: list[int] = []
    kinds: dict[Hashable, list[int]] = {}
    for place in places:
        item = items[place]
        if item is None or item.nbytes > small:
            alone.append(place)
        else:
            kinds.setdefault(item.kind, []).append(place)
    joined = [tuple(group) for group in kinds.values() if len(group) > 1]
    alone += [group[0] for group in kinds.values() if len(group) == 1]
    return GraphCall(tuple(sorted(alone)), tuple(joined))
