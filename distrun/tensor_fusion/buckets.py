"""Buckets: which gradients are sent together, planned from their sizes before there is any data.

A bucket is one buffer, reduced by one operation. Few large buckets waste least, but the first one must be full soon, so
that communication starts while the backward pass continues. `distrun.tensor_fusion` describes an iteration.

Invariant: every rank computes this plan from the same list of parameters in the same expected order (rank 0's). So
bucket i holds the same parameters at the same places on every rank. Each parameter is in exactly one bucket, and a
bucket holds gradients of one kind (dtype and device).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

DEFAULT_THRESHOLD = 25 << 20
"""The bytes that make a bucket full."""

FIRST_THRESHOLD = 1 << 20
"""The bytes that make the first bucket of each kind full: few, so that communication starts early."""


@dataclass(frozen=True)
class GradientInfo:
    """A gradient as the plan sees it: its size in bytes, and its kind. A bucket contains gradients of one kind only."""

    nbytes: int
    kind: Hashable
    """For example the dtype and device."""


def expected_order(count: int, arrived: Iterable[int] = ()) -> list[int]:
    """Return the expected order of the gradients of `count` parameters.

    The ones in `arrived` come first, as they arrived last time. The others follow, the last parameter first.
    """
    order = list(dict.fromkeys(arrived))
    seen = set(order)
    return order + [place for place in reversed(range(count)) if place not in seen]


def plan_buckets(
    gradients: Sequence[GradientInfo],
    order: Sequence[int],
    threshold: int = DEFAULT_THRESHOLD,
    first: int = FIRST_THRESHOLD,
) -> list[list[int]]:
    """Plan buckets of gradients that arrive in a known order.

    Args:
        gradients: one for each parameter.
        order: the indices into `gradients` to plan for, in the expected order.
        threshold: the most bytes in a bucket. A larger gradient has a bucket to itself.
        first: the most bytes in the first bucket of a kind.

    Returns:
        The buckets, as lists of indices into `gradients`, in the order of their completion.
    """
    buckets: list[list[int]] = []
    open_buckets: dict[Hashable, tuple[list[int], int]] = {}
    limits: dict[Hashable, int] = {}
    for place in order:
        gradient = gradients[place]
        bucket, filled = open_buckets.get(gradient.kind, ([], 0))
        if bucket and filled + gradient.nbytes > limits.get(gradient.kind, min(first, threshold)):
            buckets.append(bucket)
            limits[gradient.kind] = threshold
            bucket, filled = [], 0
        bucket.append(place)
        open_buckets[gradient.kind] = bucket, filled + gradient.nbytes
    buckets.extend(bucket for bucket, _ in open_buckets.values())
    return _in_order_of_completion(buckets, order)


def plan_grouped_buckets(
    gradients: Sequence[GradientInfo],
    groups: Sequence[Sequence[int]],
    order: Sequence[int],
    threshold: int = DEFAULT_THRESHOLD,
    first: int = FIRST_THRESHOLD,
) -> list[list[int]]:
    """Plan buckets where the caller defines which gradients are sent together.

    There is a bucket for each of `groups` and each kind in it. Gradients that are in no group are planned as by
    `plan_buckets`, and gradients that are not in `order` are left out. Arguments and result are otherwise as in
    `plan_buckets`.
    """
    wanted = set(order)
    buckets: list[list[int]] = []
    for group in groups:
        by_kind: dict[Hashable, list[int]] = {}
        for place in group:
            if place in wanted:
                by_kind.setdefault(gradients[place].kind, []).append(place)
                wanted.discard(place)
        buckets.extend(by_kind.values())
    rest = plan_buckets(gradients, [place for place in order if place in wanted], threshold, first) if wanted else []
    return _in_order_of_completion(buckets + rest, order)


def equal_groups(count: int, number: int) -> list[list[int]]:
    """Divide the indices from 0 to `count` - 1 into at most `number` runs of consecutive ones, as equal as possible."""
    share, over = divmod(count, number)
    groups = []
    start = 0
    for index in range(min(number, count)):
        stop = start + share + (index < over)
        groups.append(list(range(start, stop)))
        start = stop
    return groups


def _in_order_of_completion(buckets: list[list[int]], order: Sequence[int]) -> list[list[int]]:
    when = {place: index for index, place in enumerate(order)}
    return sorted(buckets, key=lambda bucket: max(when[place] for place in bucket))
