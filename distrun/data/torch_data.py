"""A rank's part of a torch Dataset: a Dataset, or a DataLoader of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from distrun.data.plan import Division, Plan, StreamPlan
from distrun.data.position import Position
from distrun.data.shards import Samples, Shard, deal
from distrun.data.waiting import Judge, measured
from distrun.errors import UsageError


class DatasetSamples(Samples, Dataset[Any]):
    """This rank's samples of a dataset with a length. In the user's own DataLoader, `set_epoch` sets the epoch."""

    def __init__(self, source: Any, plan: Plan, position: Position | None = None) -> None:
        super().__init__(source, plan, position)
        _share(self)


class DatasetStream(Shard, IterableDataset[Any]):
    """This rank's samples of a dataset that can only be iterated over. `set_epoch` sets the epoch.

    In worker processes each worker's stream is divided in the same way as the whole.
    """

    def __init__(self, source: IterableDataset[Any], division: Division, position: Position | None = None) -> None:
        super().__init__(StreamPlan(division), position)
        self._source = source
        _ = division.buffer  # raises an impossible setting's error here, where the script sees it
        _share(self)

    def __iter__(self) -> Iterator[Any]:
        return deal(self._source, self._plan, self.epoch)


class Loader(Shard, DataLoader[Any]):
    """A DataLoader of this rank's batches. Each iteration is the next epoch."""

    def __init__(self, samples: DatasetSamples | DatasetStream, judge: Judge | None, options: dict[str, Any]) -> None:
        whole = samples._whole
        Shard.__init__(self, whole, samples.position)
        self._samples = samples  # gets the deals through shared memory, in worker processes, too
        self._deal = samples._deal
        self._judge = judge
        division = whole.division
        if division.pad or isinstance(samples, DatasetStream):
            options = {"batch_size": division.batch_size, "drop_last": division.drop_remainder, **options}
        else:
            options = {"batch_sampler": _Places(samples), **options}
        DataLoader.__init__(self, samples, **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # DataLoader promises an iterator of a private class
        return measured(self._epoch_of(self._batches), self._judge)

    def _batches(self) -> Iterator[Any]:
        if self._plan.start and not self.can_go_on:
            raise UsageError(
                f"nobody knows what each of {self.num_workers} workers has read of an IterableDataset, so what is left "
                "of its epoch cannot be gone through: give shard num_workers=1"
            )
        return DataLoader.__iter__(self)

    @property
    def can_go_on(self) -> bool:
        """Whether the rest of an epoch can be iterated over."""
        return not (isinstance(self._samples, DatasetStream) and self.num_workers > 1)


class _Places(Sampler[list[int]]):
    """The batches of a shard without padding, whose last one a DataLoader would not make by itself."""

    def __init__(self, samples: DatasetSamples) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[list[int]]:
        plan, places = self._samples._plan, range(len(self._samples))
        return (list(places[plan.batch(step)]) for step in range(plan.steps))

    def __len__(self) -> int:
        return int(self._samples._plan.steps)


def is_stream(dataset: Any) -> bool:
    """Whether a dataset can only be iterated over."""
    return isinstance(dataset, IterableDataset)


def _share(samples: Shard) -> None:
    """Put the deal into memory that worker processes see, since they may live longer than an epoch."""
    samples._deal = torch.from_numpy(samples._deal).share_memory_()  # type: ignore[no-untyped-call]
