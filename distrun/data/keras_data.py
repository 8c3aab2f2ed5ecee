"""A rank's part as a keras.utils.PyDataset, which `fit` accepts on all backends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from distrun.data.plan import Plan
from distrun.data.position import Position
from distrun.data.shards import Batches, Samples, Shard
from distrun.data.waiting import Judge, Watch


class _Counted(Shard):
    """Data that `fit` reads item by item, so that the items read can be counted."""

    def _redealt(self) -> None:
        super()._redealt()
        self._read = 0  # counts items since the last deal: what an earlier `fit` has read must not end an epoch


class KerasBatches(_Counted, Batches, keras.utils.PyDataset):
    """Batches that `fit` accepts, too. An epoch of `fit` is over when all of them have been read."""

    def __init__(
        self, pick: Callable[[NDArray[np.int64]], Any], plan: Plan, judge: Judge | None, position: Position | None
    ) -> None:
        Batches.__init__(self, pick, plan, judge, position)
        keras.utils.PyDataset.__init__(self)

    def __getitem__(self, step: Any) -> Any:
        self._read += 1
        return super().__getitem__(step)

    def on_epoch_end(self) -> None:
        """Go to the next epoch. Keras also calls this before the first epoch, when it has read only some batches."""
        if self._read >= len(self):
            self.set_epoch(self.epoch + 1)


class PyDatasetPart(_Counted, Samples, keras.utils.PyDataset):
    """This rank's items, usually batches, of a PyDataset."""

    def __init__(self, source: Any, plan: Plan, judge: Judge | None, position: Position | None) -> None:
        Samples.__init__(self, source, plan, position)
        keras.utils.PyDataset.__init__(self, source.workers, source.use_multiprocessing, source.max_queue_size)
        self._judge = judge
        self._watch = None if judge is None else Watch(judge)

    def __getitem__(self, place: Any) -> Any:
        self._read += 1
        # Items fetched in another thread are prepared while the model computes, so they are not waited for.
        if self._watch is None or threading.current_thread() is not threading.main_thread():
            return super().__getitem__(place)
        return self._watch.fetch(lambda: Samples.__getitem__(self, place))

    def on_epoch_begin(self) -> None:
        """Forward the call to the source, and begin to measure an epoch."""
        self._source.on_epoch_begin()
        self._watch = None if self._judge is None else Watch(self._judge)

    def on_epoch_end(self) -> None:
        """Go to the next epoch, as in `KerasBatches`."""
        self._source.on_epoch_end()
        if self._read >= len(self):
            self.set_epoch(self.epoch + 1)
