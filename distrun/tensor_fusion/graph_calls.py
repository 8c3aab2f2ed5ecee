"""Calls of a collective inside a graph: which gradients go into one call, and which are concatenated for it.

A graph pays for every tensor that it passes to a call, and for every byte that it concatenates. So small tensors are
concatenated in the graph, and large ones are passed as they are. One call takes everything, unless communication may
overlap with the backward pass. Then there are several calls, in the order of their gradients' completion.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from distrun.tensor_fusion.buckets import GradientInfo, expected_order, plan_buckets

CONCATENATED_UP_TO = 64 << 10
"""The most bytes of a gradient that is concatenated with others."""


@dataclass(frozen=True)
class GraphCall:
    """One call of a collective, by the indices of its tensors in the list of gradients."""

    alone: tuple[int, ...]
    """The gradients that are passed as they are."""
    joined: tuple[tuple[int, ...], ...]
    """The groups of gradients that are concatenated, each to one tensor."""


def plan_calls(
    gradients: Sequence[GradientInfo | None], threshold: int | None = None, small: int = CONCATENATED_UP_TO
) -> list[GraphCall]:
    """Plan the calls for a list of gradients.

    Args:
        gradients: one of unknown size is None, and is not concatenated.
        threshold: the most bytes in a call. None for a single call.
        small: the most bytes of a gradient that is concatenated with others of its kind. 0: none is.

    Returns:
        The calls in the order to make them, from the last gradient to the first. A call may contain several
        kinds.
    """
    if not gradients:
        return []
    if threshold is None:
        return [_call(gradients, range(len(gradients)), small)]
    sized = [
        GradientInfo(0, None) if gradient is None else GradientInfo(gradient.nbytes, None) for gradient in gradients
    ]
    return [
        _call(gradients, sorted(bucket), small)
        for bucket in plan_buckets(sized, expected_order(len(gradients)), threshold)
    ]


def _call(gradients: Sequence[GradientInfo | None], places: Sequence[int], small: int) -> GraphCall:
    alone: list[int] = []
    kinds: dict[Hashable, list[int]] = {}
    for place in places:
        gradient = gradients[place]
        if gradient is None or gradient.nbytes > small:
            alone.append(place)
        else:
            kinds.setdefault(gradient.kind, []).append(place)
    joined = [tuple(group) for group in kinds.values() if len(group) > 1]
    alone += [group[0] for group in kinds.values() if len(group) == 1]
    return GraphCall(tuple(sorted(alone)), tuple(joined))
