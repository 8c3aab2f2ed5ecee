"""The process that rehearses: its training loop gets the first batch from the ranks, and ends after the step on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sized
from typing import Any

import torch

from distrun.auto.rehearsal import RehearsingProcess
from distrun.auto.torch import generators, trial
from distrun.auto.torch.session import current as session
from distrun.auto.torch.trial import copying


class RehearsedBatches:
    """The iterator of a DataLoader in the rehearsing process."""

    def __init__(self, process: RehearsingProcess, loader: Sized, sums_of_weights: Callable[[], list[int]]) -> None:
        self._process, self._loader, self._sums_of_weights = process, loader, sums_of_weights
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
        if self._sums_of_weights() != sums:
            os._exit(1)  # the script has created other weights here than on rank 0
        trial.begin_copy(copying.Copy(self._process.leave))
        generators.put(states)
        return batch

    def __del__(self) -> None:
        if self._has_begun:
            trial.leave_loop()
