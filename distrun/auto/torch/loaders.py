"""DataLoaders: each rank loads its part of every batch of a training loop.

The batches stay the script's own: its sampler draws the same samples in the same order on all ranks, and each rank
loads only some samples of a batch. So this works with every map-style data set and every sampler. An iteration for an
evaluation is left as it is: every rank sees all batches, and its result is exact.
"""

from __future__ import annotations

import linecache
import os
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, dataloader as torchs
from torch.utils.data._utils.collate import default_collate
from torch.utils.data.distributed import DistributedSampler

import distrun
from distrun.auto import job
from distrun.auto.refusing import refuse
from distrun.auto.rehearsal import RehearsingProcess
from distrun.auto.torch import generators, optimizers, statistics, trial
from distrun.auto.torch.parts import Part, cut, pooled
from distrun.auto.torch.session import current as session, is_shared
from distrun.auto.torch.trial import copying, samples

_SINGLE = "next(iter(loader)) takes a single batch, which is not divided"
_UNEVEN = 16  # batches of an iteration with unequal parts, so that the rules of new kinds of losses can be found
_EVALUATION_LINES = ("model.eval()", "with torch.no_grad():", "    for x, y in loader:", "        ...")


class Sharding:
    """The state of one iteration of a DataLoader whose batches are divided."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = weakref.ref(loader)
        self.parts: deque[tuple[Part, list[Any]]] = deque()
        """The parts that are being loaded, in order, each with the indices of all samples of its batch."""
        self.is_padded = loader.collate_fn is not default_collate
        self.backwards = session.backwards  # before the iteration
        self.batches = 0


_shardings: weakref.WeakKeyDictionary[DataLoader[Any], Sharding] = weakref.WeakKeyDictionary()
_number = 0  # of iterations


def why_not(loader: DataLoader[Any]) -> str | None:
    """Return why an iteration that begins now is not divided; "" if it is not for training; None if it is divided."""
    if not torch.is_grad_enabled():
        return ""
    if not len(session.optimizers):
        return "no optimizer had been made when the iteration of the DataLoader began"
    if session.is_evaluating:
        return "the model was in evaluation mode (model.eval()) when the iteration of the DataLoader began"
    if isinstance(loader.dataset, IterableDataset):
        return f"{type(loader.dataset).__name__} is an IterableDataset: which rank takes which samples is up to it"
    if loader.batch_size is None and loader.batch_sampler is None:
        return "a DataLoader with batch_size=None gives what its data set gives, which cannot be divided"
    if type(loader.batch_sampler) is not BatchSampler:
        return f"{type(loader.batch_sampler).__name__} is a batch sampler of the script's own"
    if isinstance(loader.sampler, DistributedSampler):
        return "a DistributedSampler divides the data already"
    if not getattr(loader, "in_order", True):
        return "a DataLoader with in_order=False gives its batches in another order on each rank"
    if job.current.mode == "global" and is_shared() and loader.batch_sampler.batch_size <= distrun.size():
        return (
            f"the batch size of the DataLoader, {loader.batch_sampler.batch_size}, is not more than the number of "
            f"ranks, {distrun.size()} (take a larger one, fewer ranks, or --auto=scale)"
        )
    return None


class CutBatches:
    """A batch sampler that wraps the script's: it yields this rank's parts of batches, if the iteration is divided."""

    def __init__(self, loader: DataLoader[Any], batches: Any) -> None:
        self._loader, self._batches = loader, batches

    def __len__(self) -> int:
        batches = len(self._batches)
        is_divided = job.current.mode == "scale" and _shardings.get(self._loader) is not None
        return -(-batches // distrun.size()) if is_divided else batches

    def __iter__(self) -> Iterator[list[Any]]:
        sharding = _shardings.get(self._loader)
        return iter(self._batches) if sharding is None else self._parts(sharding)

    def _parts(self, sharding: Sharding) -> Iterator[list[Any]]:
        batches = _drawn(self._loader.dataset, self._batches)
        ranks, rank = distrun.size(), distrun.rank()
        cut_all = (
            pooled(batches, ranks, rank)
            if job.current.mode == "scale"
            else ((cut(len(batch), ranks, rank, place < _UNEVEN), batch) for place, batch in enumerate(batches))
        )
        for part, indices in cut_all:
            sharding.parts.append((part, indices))
            yield part.take(indices)


def _drawn(dataset: Any, batches: Iterable[list[Any]]) -> Iterator[list[Any]]:
    """Yield the batches of a sampler, which draws from the common streams. Compare the first between the ranks."""
    with generators.common():
        iterator = iter(batches)
    for place in count():
        with generators.common():
            batch = next(iterator, None)
            if batch is None:
                return
            if not place:
                samples.compare(dataset, batch)
        yield batch


class DividedBatches:
    """The iterator of a divided DataLoader. It keeps the session informed of the part that the script works on."""

    def __init__(self, iterator: Any, sharding: Sharding) -> None:
        self._iterator = iterator
        self._sharding = sharding
        self._loading = generators.Loading()
        self._part: Part | None = None

    def __iter__(self) -> DividedBatches:
        return self

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __next__(self) -> Any:
        trial.finish()
        if self._sharding.batches:
            statistics.end()
        session.is_loading = True
        try:
            with self._loading.own():
                batch = next(self._iterator)
        except StopIteration:
            self._end()
            raise
        finally:
            session.is_loading = False
        self._part, indices = self._sharding.parts.popleft()
        session.parts[self] = self._part
        self._sharding.batches += 1
        session.part, session.is_padded = self._part, self._sharding.is_padded
        session.backwards_in_batch = session.grads_in_batch = 0
        session.batch = self._sharding.batches
        if session.is_first_batch:
            session.iteration += 1
        has_new_optimizer = len(session.prepared) != len(session.optimizers)
        optimizers.prepare()
        if session.is_first_batch and job.current.mode == "global":
            statistics.begin(batch, self._part, has_new_optimizer)
        loader = self._sharding.loader() if self._sharding.is_padded else None
        collate = None if loader is None else partial(samples.collated, loader, indices)
        return trial.begin(batch, self._part, has_new_optimizer, optimizers, collate)

    def _end(self) -> None:
        statistics.end()
        generators.of_torch.use(own=False)
        session.parts.pop(self, None)
        if session.part is self._part:
            session.lose_part()
        if self._sharding.batches and session.backwards == self._sharding.backwards:
            refuse(
                "a DataLoader was iterated, divided among the ranks as for training, but backward() was not called: "
                "each rank has seen its own part only. If it was an evaluation, say so",
                _EVALUATION_LINES,
            )
        if self._sharding.batches:
            session.batch = session.backwards_in_batch = 0
            optimizers.compare()
        self._sharding.batches = 0

    def __del__(self) -> None:
        if getattr(self, "_part", None) is not None and session.part is self._part:
            job.current.leave_loop()
            trial.leave_loop()
            session.lose_part()
            statistics.end()
            generators.of_torch.use(own=False)


class RehearsedBatches:
    """The iterator of a DataLoader in the process that rehearses: it gives the ranks' first batch alone."""

    def __init__(self, process: RehearsingProcess, loader: DataLoader[Any]) -> None:
        self._process, self._loader = process, loader
        self._has_begun = False

    def __iter__(self) -> RehearsedBatches:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        if self._has_begun:
            trial.finish()
        if trial.is_running():  # the batches of two DataLoaders at once are not handed over
            os._exit(1)
        self._has_begun = True
        batch, states, sums = copying.unpacked(self._process.given())
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.set_per_process_memory_fraction(1.0)
        session.prepared.update(session.optimizers)
        if optimizers.sums_of_weights() != sums:
            os._exit(1)  # the script has created other weights here than on rank 0
        trial.begin_copy(copying.Copy(self._process.leave))
        generators.put(states)
        return batch

    def __del__(self) -> None:
        if self._has_begun:
            trial.leave_loop()


def _takes_one_batch(caller: FrameType) -> bool:
    """Whether the caller's line is `next(iter(loader))`, which drops the iterator after one batch."""
    return "next(iter(" in linecache.getline(caller.f_code.co_filename, caller.f_lineno)


def _iterate(loader: DataLoader[Any]) -> Any:
    trial.end()
    takes_one = _takes_one_batch(sys._getframe(1))
    rehearsing = job.current.rehearsing if torch.utils.data.get_worker_info() is None else None
    if rehearsing is not None and not takes_one and why_not(loader) is None:
        return RehearsedBatches(rehearsing, loader)
    if not is_shared():
        return _plain_iter(loader)
    global _number
    generators.of_torch.use(own=False)
    why = _SINGLE if takes_one else why_not(loader)
    _number += 1
    generators.agree(f"auto.iteration.{_number}")
    if why is not None:
        _shardings.pop(loader, None)
        if why:
            session.why_not_shared = why
        return _plain_iter(loader)
    sharding = _shardings[loader] = Sharding(loader)
    return DividedBatches(_plain_iter(loader), sharding)


def _index_sampler(loader: DataLoader[Any]) -> Any:
    plain = _plain_index_sampler(loader)
    if not is_shared() or loader.batch_sampler is None or plain is not loader.batch_sampler:
        return plain
    return CutBatches(loader, plain)


def _init_iterator(iterator: Any, loader: DataLoader[Any]) -> None:
    _plain_init_iterator(iterator, loader)
    if is_shared() and loader in _shardings:  # so that the workers of each rank draw other numbers
        iterator._base_seed = generators.own_seed(iterator._base_seed, distrun.rank())


_plain_iter = DataLoader.__iter__
_plain_index_sampler: Any = DataLoader._index_sampler.fget  # type: ignore[attr-defined]
_plain_init_iterator = torchs._BaseDataLoaderIter.__init__


def install() -> None:
    """Change torch's DataLoader."""
    DataLoader.__iter__ = _iterate  # type: ignore[method-assign]
    DataLoader._index_sampler = property(_index_sampler)  # type: ignore[method-assign, assignment]
    torchs._BaseDataLoaderIter.__init__ = _init_iterator  # type: ignore[method-assign, assignment]
