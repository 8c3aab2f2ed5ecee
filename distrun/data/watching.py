"""The public `watch`: it measures any kind of training input by the clocks of `waiting`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import GeneratorType
from typing import Any

from distrun.data.waiting import Item, Judge, measured, new_judge


class Watched(Iterable[Item]):
    """An iterable that measures each iteration over it as one epoch."""

    def __init__(self, source: Iterable[Item], judge: Judge) -> None:
        self._source = source
        self._judge = judge

    def __iter__(self) -> Iterator[Item]:
        return measured(self._source, self._judge)

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]  # without a length, a TypeError is right


def watch(data: Any) -> Any:
    """Return `data` in a form that logs a warning when this rank waits too long for its batches.

    Too long is more than a fifth of the rank's time, or the share in DISTRUN_INPUT_WAIT (0: never warn). Watch what the
    training loop itself iterates over, after every `map` and `prefetch`. There is at most one warning per epoch, and
    none in epochs of fewer than 20 steps.

    Args:
        data: any iterable of batches.

    Returns:
        A tf.data.Dataset for a tf.data.Dataset (measured inside `fit`, too), a generator for a generator, and an
        iterable for anything else.

    Raises:
        UsageError: DISTRUN_INPUT_WAIT is not a share.
        NotInitializedError: before `init()`.
    """
    judge = new_judge()
    if judge is None:
        return data
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(data, tensorflow.data.Dataset):
        from distrun.data import tf_data

        return tf_data.watched(data, judge)
    if isinstance(data, GeneratorType):
        return measured(data, judge)
    return Watched(data, judge)
