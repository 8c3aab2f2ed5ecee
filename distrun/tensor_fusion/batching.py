"""Batching: which of the operations that became ready together are executed as one.

Every rank computes this from the same list and so comes to the same result: the ranks need not agree on it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

DEFAULT_THRESHOLD = 64 << 20
"""Bytes that a batch may carry. A single operation that is larger travels alone."""

FUSED_BELOW = 256 << 10
"""Bytes below which an operation is worth fusing. Packing a larger one costs more than executing it by itself, above
all when it lies in shared memory already, as gradient buckets do."""

Operation = TypeVar("Operation")


def fuse(
    operations: Iterable[Operation],
    key: Callable[[Operation], Hashable | None],
    nbytes: Callable[[Operation], int],
    threshold: int = DEFAULT_THRESHOLD,
) -> list[list[Operation]]:
    """Group `operations` into batches of equal `key` and at most `threshold` bytes, in order of first appearance.

    An operation whose key is None travels alone, at its own place in the order. Unlike Horovod's look-ahead, operations
    of one key are gathered over the whole list, so interleaved float16 and float32 gradients make two batches, not
    many.
    """
    batches: list[list[Operation]] = []
    open_batches: dict[Hashable, tuple[list[Operation], int]] = {}
    for operation in operations:
        kind = key(operation)
        size = nbytes(operation)
        if kind is not None and kind in open_batches:
            batch, filled = open_batches[kind]
            if filled + size <= threshold:
                batch.append(operation)
                open_batches[kind] = batch, filled + size
                continue
        batch = [operation]
        batches.append(batch)
        if kind is not None:
            open_batches[kind] = batch, size
    return batches
