"""The last step boundaries of a training loop, whose arrays JAX may not have computed yet.

JAX dispatches asynchronously: when a script is at a boundary, earlier steps may still be under way, and fail later.
Arrays are immutable, so keeping a boundary's arrays keeps its state without a copy.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import jax


class Lookahead:
    """The arrays of the last two boundaries, each with a note."""

    def __init__(self) -> None:
        self._boundaries: deque[tuple[Any, Any]] = deque()

    def add(self, arrays: Any, note: Any) -> None:
        """Add a boundary. Wait for the previous one, so that at most two are kept, and raise the error of a step up to
        it.
        """
        self._boundaries.append((arrays, note))
        if len(self._boundaries) > 2:
            _wait(self._boundaries[1][0])
            self._boundaries.popleft()

    def wait(self) -> None:
        """Wait for the last boundary. Raises what `add` raises."""
        _wait(self._boundaries[-1][0])

    def newest(self) -> tuple[Any, Any] | None:
        """Return the arrays and the note of the last boundary whose arrays all exist, or None."""
        for arrays, note in reversed(self._boundaries):
            try:
                _wait(arrays)
            except Exception:
                continue
            if not any(_is_deleted(array) for array in jax.tree_util.tree_leaves(arrays)):
                return arrays, note
        return None

    def clear(self) -> None:
        """Remove all boundaries."""
        self._boundaries.clear()


def _wait(arrays: Any) -> None:
    # An array that was donated to a later step is gone. If its step has failed, later arrays have the error.
    jax.block_until_ready([array for array in jax.tree_util.tree_leaves(arrays) if not _is_deleted(array)])


def _is_deleted(array: Any) -> bool:
    return isinstance(array, jax.Array) and array.is_deleted()
