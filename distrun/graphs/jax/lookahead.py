"""The last step boundaries of a training, whose arrays JAX may not have computed yet.

JAX computes ahead: when a script is at a boundary, the steps before may still be under way, and fail later. Arrays do
not change, so keeping those of a boundary is keeping its state, without a copy.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import jax


class Lookahead:
    """The arrays of the last boundaries, each with a note."""

    def __init__(self) -> None:
        self._boundaries: deque[tuple[Any, Any]] = deque()

    def add(self, arrays: Any, note: Any) -> None:
        """Add a boundary. Waits for the one before, so that two have to be kept.

        Raises:
            Exception: a step up to there has failed.
        """
        self._boundaries.append((arrays, note))
        if len(self._boundaries) > 2:
            _wait(self._boundaries[1][0])
            self._boundaries.popleft()

    def wait(self) -> None:
        """Wait for the last boundary; raises as `add` does."""
        _wait(self._boundaries[-1][0])

    def newest(self) -> tuple[Any, Any] | None:
        """Return the last boundary whose arrays are all there, with its note; None if there is none."""
        for arrays, note in reversed(self._boundaries):
            try:
                _wait(arrays)
            except Exception:
                continue
            if not any(_is_deleted(array) for array in jax.tree_util.tree_leaves(arrays)):
                return arrays, note
        return None

    def clear(self) -> None:
        """Keep none."""
        self._boundaries.clear()


def _wait(arrays: Any) -> None:
    # An array that was donated to a later step is gone: what has become of its step, later ones will tell.
    jax.block_until_ready([array for array in jax.tree_util.tree_leaves(arrays) if not _is_deleted(array)])


def _is_deleted(array: Any) -> bool:
    return isinstance(array, jax.Array) and array.is_deleted()
