"""Random numbers when ranks come or go."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from distrun.elastic.part import Part
from distrun.runtime.world import world


class RandomNumbers(Part):
    """The state of torch's generators.

    The seeds tell whether all ranks draw the same numbers. Ranks with the same seed (`torch.manual_seed(1)` on all)
    share a sequence, and a rank that takes the donor's state takes its generators too. A rank with a seed of its own
    (`torch.manual_seed(1 + rank)`, or none) keeps its sequence. A newcomer's seed is then mixed with the number of the
    generation: by its seed alone it would draw the numbers that an earlier process of this rank has drawn. At the start
    of a job nothing is changed.
    """

    def __init__(self) -> None:
        self._is_under_way = False
        self._saved: dict[str, Any] | None = None

    def save(self) -> None:
        """Do nothing: steps that are made again may draw other numbers."""

    def restore(self) -> None:
        """Do nothing. See `save`."""

    def mark(self) -> None:
        """Note that training has begun."""
        self._is_under_way = True

    def describe(self) -> dict[str, Any] | None:
        """Return the donor's seed, and its generators as bytes, or None at the start of a job."""
        if not self._is_under_way:
            return None
        on_gpu = torch.cuda.get_rng_state() if _is_cuda_used() else None
        return {
            "seed": torch.initial_seed(),
            "cpu": torch.get_rng_state().numpy(),
            "cuda": None if on_gpu is None else on_gpu.numpy(),
        }

    def adopt(self, description: dict[str, Any] | None) -> None:
        """Share the donor's sequence, or begin one of this rank's own."""
        if description is None:
            return
        if torch.initial_seed() == description["seed"]:
            torch.set_rng_state(torch.from_numpy(description["cpu"].copy()))
            if description["cuda"] is not None and _is_cuda_used():
                torch.cuda.set_rng_state(torch.from_numpy(description["cuda"].copy()))
        elif not self._is_under_way:
            mixed = np.random.SeedSequence([torch.initial_seed(), world.generation()])
            torch.manual_seed(int(mixed.generate_state(1, np.uint64)[0]))


def _is_cuda_used() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
