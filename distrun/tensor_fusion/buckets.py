"""Buckets: which gradients travel together, planned from sizes before there is any data.

A bucket is filled by one copy and reduced by one operation. Few large ones waste least; but the first must be full soon, so
that communication starts while the backward pass goes on. How an iteration goes:

1. The backward pass produces gradients, one after the other, from the last layer to the first.
2. A gradient counts its bucket down. The one that completes the bucket has all of the bucket's gradients copied into the
   bucket's buffer and the buffer's reduction started; the backward pass goes on.
3. At the end of the backward pass, buckets that some parameter kept incomplete are sent as well, with zeros in its place.
4. When all reductions are done, the gradients of the parameters become views of the buffers.

Invariant: every rank computes this plan from the same list of parameters in the same expected order (rank 0's), so bucket i
holds the same parameters at the same places everywhere; each parameter lies in exactly one bucket; a bucket holds one kind
(dtype and device); and memory that is being reduced is never what a parameter's gradient points at.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

DEFAULT_THRESHOLD = 25 << 20
"""Bytes from which a bucket is full."""

FIRST_THRESHOLD = 1 << 20
"""The same for the first bucket of each kind: small, so that communication starts early."""


@dataclass(frozen=True)
class Item:
    """What the plan needs to know of a parameter: how many bytes its gradient has, and its kind (dtype and device)."""

    nbytes: int
    kind: Hashable


def expected_order(count: int, arrived: Iterable[int] = ()) -> list[int]:
    """The order in which to expect the gradients of `count` parameters: as they arrived last time, then from last to first."""
    order = list(dict.fromkeys(arrived))
    seen = set(order)
    return order + [place for place in reversed(range(count)) if place not in seen]


def plan(
    items: Sequence[Item],
    order: Sequence[int],
    threshold: int = DEFAULT_THRESHOLD,
    first: int = FIRST_THRESHOLD,
) -> list[list[int]]:
    """The buckets, as lists of places in `items`, in the order in which they will be complete.

    `order` lists the places to plan for. A bucket holds at most `threshold` bytes (the first of a kind: `first`), unless it
    holds one larger item, which then has the bucket to itself.
    """
    buckets: list[list[int]] = []
    open_buckets: dict[Hashable, tuple[list[int], int]] = {}
    limits: dict[Hashable, int] = {}
    for place in order:
        item = items[place]
        bucket, filled = open_buckets.get(item.kind, ([], 0))
        if bucket and filled + item.nbytes > limits.get(item.kind, min(first, threshold)):
            buckets.append(bucket)
            limits[item.kind] = threshold
            bucket, filled = [], 0
        bucket.append(place)
        open_buckets[item.kind] = bucket, filled + item.nbytes
    buckets.extend(bucket for bucket, _ in open_buckets.values())
    return _in_order_of_completion(buckets, order)


def plan_groups(
    items: Sequence[Item],
    groups: Sequence[Sequence[int]],
    order: Sequence[int],
    threshold: int = DEFAULT_THRESHOLD,
    first: int = FIRST_THRESHOLD,
) -> list[list[int]]:
    """The buckets when the caller says what travels together: one per group and kind; what is in no group as `plan` says.

    Places not in `order` are left out.
    """
    wanted = set(order)
    buckets: list[list[int]] = []
    for group in groups:
        by_kind: dict[Hashable, list[int]] = {}
        for place in group:
            if place in wanted:
                by_kind.setdefault(items[place].kind, []).append(place)
                wanted.discard(place)
        buckets.extend(by_kind.values())
    rest = plan(items, [place for place in order if place in wanted], threshold, first) if wanted else []
    return _in_order_of_completion(buckets + rest, order)


def equal_groups(count: int, number: int) -> list[list[int]]:
    """`count` places in at most `number` groups of neighbours, as equal as possible."""
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
