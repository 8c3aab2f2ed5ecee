"""Batching: which of the operations that became ready together are executed as one.

Every rank computes this from the same list and gets the same result, so the ranks need not communicate about it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

DEFAULT_THRESHOLD = 64 << 20
"""The most bytes of a batch. A single operation that is larger is executed by itself."""

FUSED_BELOW = 256 << 10
"""The bytes of an operation below which it is worth fusing. Packing a larger one costs more than executing it by
itself, especially when it is in shared memory already, as gradient buckets are."""

Operation = TypeVar("Operation")


def fuse(
    operations: Iterable[Operation],
    key: Callable[[Operation], Hashable | None],
    nbytes: Callable[[Operation], int],
    threshold: int = DEFAULT_THRESHOLD,
) -> list[list[Operation]]:
    """Group `operations` into batches of equal `key` and at most `threshold` bytes, in order of first appearance.

    An operation whose key is None is executed by itself, at its own place in the order. Unlike Horovod's look-ahead,
    this collects the operations of one key from the whole list, so interleaved float16 and float32 gradients make two
    batches, not many.
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
