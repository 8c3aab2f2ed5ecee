"""A rank's part of a torch Dataset: a Dataset, or a DataLoader of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from distrun.data.plan import Division, Plan
from distrun.data.shards import Samples, Shard, deal
from distrun.data.waiting import Judge, measured


class DatasetSamples(Samples, Dataset[Any]):
    """This rank's samples of a dataset with a length. In a DataLoader of one's own, the epoch is what `set_epoch` said
    last."""

    def __init__(self, source: Any, plan: Plan) -> None:
        super().__init__(source, plan)
        self._epoch = _shared_epoch()


class DatasetStream(Shard, IterableDataset[Any]):
    """This rank's samples of a dataset that can only be gone through. The epoch is what `set_epoch` said last.

    In worker processes each worker's stream is divided like the whole.
    """

    def __init__(self, source: IterableDataset[Any], division: Division) -> None:
        super().__init__(None)
        self._source = source
        self._division = division
        self._epoch = _shared_epoch()
        _ = division.buffer  # complains while there is somebody to hear it

    def __iter__(self) -> Iterator[Any]:
        return deal(self._source, self._division, self.epoch)


class Loader(Shard, DataLoader[Any]):
    """A DataLoader of this rank's batches; each iteration is the next epoch."""

    def __init__(
        self, samples: DatasetSamples | DatasetStream, division: Division, judge: Judge | None, options: dict[str, Any]
    ) -> None:
        Shard.__init__(self, None)
        self.padded, self.dropped = samples.padded, samples.dropped
        DataLoader.__init__(self, samples, batch_size=division.batch_size, drop_last=division.drop_remainder, **options)
        self._judge = judge

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # DataLoader promises an iterator of a private class
        return measured(self._batches(), self._judge)

    def _batches(self) -> Iterator[Any]:
        self._begin_epoch()
        samples: Any = self.dataset
        samples.set_epoch(self.epoch)
        yield from DataLoader.__iter__(self)


def is_stream(dataset: Any) -> bool:
    """Whether a dataset can only be gone through."""
    return isinstance(dataset, IterableDataset)


def _shared_epoch() -> torch.Tensor:
    """Return an epoch number in memory that worker processes see, even those that live longer than an epoch."""
    return torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
