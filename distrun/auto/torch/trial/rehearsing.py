"""The process that rehearses: its training loop takes the batches that the ranks hand over, and ends with these."""

from __future__ import annotations

import os
from collections.abc import Callable, Sized
from typing import Any

from distrun.auto.rehearsal import RehearsingProcess
from distrun.auto.torch import generators, trial
from distrun.auto.torch.session import current as session
from distrun.auto.torch.trial import copying


class RehearsedBatches:
    """The iterator of a DataLoader in this process."""

    def __init__(self, process: RehearsingProcess, loader: Sized, sums_of_weights: Callable[[], list[int]]) -> None:
        self._process, self._loader, self._sums_of_weights = process, loader, sums_of_weights
        self._batches: list[Any] | None = None

    def __iter__(self) -> RehearsedBatches:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        if self._batches is None:
            self._begin()
        else:
            trial.finish_step_of_copy(is_last=not self._batches)
        assert self._batches is not None
        session.prepared.update(session.optimizers)
        return self._batches.pop(0)

    def _begin(self) -> None:
        if trial.is_running():  # the batches of two DataLoaders at once are not handed over
            os._exit(1)
        self._batches, states, weights = copying.unpacked(self._process.batches())
        session.prepared.update(session.optimizers)
        if self._sums_of_weights() != weights:
            os._exit(1)  # the script has made others here than on rank 0
        trial.begin_copy(copying.Copy(self._process.leave))
        generators.put(states)

    def __del__(self) -> None:
        trial.end()
