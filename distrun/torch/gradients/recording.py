"""Recording events of a training that torch has hooks for: batches requested and received, optimizers' steps.

Backward passes are recorded by the gradient reducer, which has hooks in them anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, wraps
from typing import Any

from torch import Tensor
from torch.optim import optimizer
from torch.utils.data import dataloader

from distrun.tracing import layout, recording


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
            raise
        recording.enter(layout.FORWARD, samples_in(batch))
        return batch

    iterator.__next__ = recorded


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
