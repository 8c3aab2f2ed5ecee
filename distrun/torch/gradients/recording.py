"""Recording events of a training that torch has hooks for: batches requested and received, optimizers' steps. The end
of an epoch also shows whether the sampler has been told of it.

Backward passes are recorded by the gradient reducer, which has hooks in them anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache, wraps
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import optimizer
from torch.utils.data import DistributedSampler, dataloader

from distrun.contract import settings
from distrun.runtime.world import world
from distrun.tracing import layout, recording

log = logging.getLogger("distrun")
_WARNED = -1  # instead of an epoch: once is enough


@cache
def record() -> None:
    """Install recording hooks for all DataLoaders and optimizers of this process, if its events are recorded at
    all."""
    if recording.ring is None:
        return
    _record_batches(dataloader._BaseDataLoaderIter)
    optimizer.register_optimizer_step_pre_hook(_begins_step)
    optimizer.register_optimizer_step_post_hook(_ends_step)


def _record_batches(iterator: Any) -> None:
    plain = iterator.__next__

    @wraps(plain)
    def recorded(self: Any) -> Any:
        recording.enter(layout.INPUT)
        try:
            batch = plain(self)
        except StopIteration:
            recording.enter(layout.OTHER)
            _epoch_ends(getattr(self._index_sampler, "sampler", self._index_sampler))
            raise
        recording.enter(layout.FORWARD, samples_in(batch))
        return batch

    iterator.__next__ = recorded


_steps_before = 0  # the steps of the training when an epoch ended last
_epochs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of samplers when an epoch of training ended


def _epoch_ends(sampler: Any) -> None:
    """Warn on rank 0, once, if a DistributedSampler has given a second epoch of training the order of the first."""
    global _steps_before
    assert recording.ring is not None
    before, _steps_before = _steps_before, recording.ring.steps
    if before == _steps_before or not (isinstance(sampler, DistributedSampler) and sampler.shuffle):
        return  # an evaluation, or an order that depends on no epoch
    last = _epochs.get(sampler)
    if last == _WARNED:
        return
    _epochs[sampler] = _WARNED if last == sampler.epoch else sampler.epoch
    if last == sampler.epoch and world.rank() == 0 and settings.current().hints:
        log.warning(
            "a second epoch of training had the order of the one before: call set_epoch(epoch) of the "
            "DistributedSampler before each"
        )


def samples_in(batch: Any) -> int:
    """Return the number of samples in a batch: the first dimension of its first tensor, or 0 if there is none."""
    for _ in range(4):
        if isinstance(batch, Tensor):
            return int(batch.shape[0]) if batch.ndim else 0
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, Sequence) and not isinstance(batch, str):
            batch = batch[0] if len(batch) else None
        else:
            return 0
    return 0


def _begins_step(*_: Any) -> None:
    recording.enter(layout.OPTIMIZER)


def _ends_step(*_: Any) -> None:
    recording.step_done()
    recording.enter(layout.OTHER)
