"""A rank's part as a keras.utils.PyDataset, which `fit` takes on all backends."""

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
    """Data of which `fit` reads an epoch item by item."""

    def _redealt(self) -> None:
        super()._redealt()
        self._read = 0  # of what is dealt now: what an earlier `fit` has read ends no epoch


class KerasBatches(_Counted, Batches, keras.utils.PyDataset):
    """Batches that `fit` takes too; an epoch of `fit` is over when all of them have been read."""

    def __init__(
        self, pick: Callable[[NDArray[np.int64]], Any], plan: Plan, judge: Judge | None, position: Position | None
    ) -> None:
        Batches.__init__(self, pick, plan, judge, position)
        keras.utils.PyDataset.__init__(self)

    def __getitem__(self, step: Any) -> Any:
        self._read += 1
        return super().__getitem__(step)

    def on_epoch_end(self) -> None:
        """The next epoch. Keras also says this before the first one, when it has only looked at some batches."""
        if self._read >= len(self):
            self.set_epoch(self.epoch + 1)


class PyDatasetPart(_Counted, Samples, keras.utils.PyDataset):
    """This rank's items, batches mostly, of a PyDataset."""

    def __init__(self, source: Any, plan: Plan, judge: Judge | None, position: Position | None) -> None:
        Samples.__init__(self, source, plan, position)
        keras.utils.PyDataset.__init__(self, source.workers, source.use_multiprocessing, source.max_queue_size)
        self._judge = judge
        self._watch = None if judge is None else Watch(judge)

    def __getitem__(self, place: Any) -> Any:
        self._read += 1
        # In another thread, items are prepared while the model computes.
        if self._watch is None or threading.current_thread() is not threading.main_thread():
            return super().__getitem__(place)
        return self._watch.fetch(lambda: Samples.__getitem__(self, place))

    def on_epoch_begin(self) -> None:
        """The source's business, and ours."""
        self._source.on_epoch_begin()
        self._watch = None if self._judge is None else Watch(self._judge)

    def on_epoch_end(self) -> None:
        """The next epoch, as in `KerasBatches`."""
        self._source.on_epoch_end()
        if self._read >= len(self):
            self.set_epoch(self.epoch + 1)
