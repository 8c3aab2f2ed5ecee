"""A copy of this process, made by fork, that goes on with the script while this one waits for what it finds."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from distrun.auto.rehearsal import Rehearsal
from distrun.auto.torch import graph
from distrun.auto.torch.trial import drawing
from distrun.auto.torch.trial.differences import Gradients
from distrun.host.forks import Fork

_TIMEOUT = 120.0  # seconds that a copy may take


@dataclass
class CopyFindings:
    """The findings of a copy in a step."""

    steps: list[Gradients] = field(default_factory=list)
    """The gradients that each step of an optimizer was about to use, in order."""
    left: Gradients = field(default_factory=dict)
    """The gradients that no optimizer has used at the end."""
    losses: list[tuple[graph.Signature, tuple[float, ...]]] = field(default_factory=list)
    """The signatures of the losses that `backward()` was called for, in order, and the divisors of their reductions."""
    reads: list[float] = field(default_factory=list)
    """The losses that the script has read, in order."""
    draws: list[drawing.Draw] = field(default_factory=list)
    """The random numbers that were drawn, in order."""
    tolerance: float = 0.0
    """The relative difference that rounding explains."""


class Copy:
    """A copy, as it sees itself."""

    def __init__(self, leave: Callable[[bytes], object]) -> None:
        """`leave` is called at the end, with what was found."""
        self._leave = leave
        self.found, self.mode = CopyFindings(), drawing.Recording()
        self.has_left = False
        """Whether the script has left its loop."""
        self.mode.begin()

    def end(self) -> NoReturn:
        """End this process at the end of the step, and leave what it has found."""
        self.mode.end()
        self.found.draws = self.mode.draws
        self.found.tolerance = self.mode.tolerance
        self._leave(packed(self.found))
        os._exit(0)


def is_on_gpu() -> bool:
    """Whether this process uses a GPU, so that it cannot be forked."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def packed(value: Any) -> bytes:
    """Return the bytes of an object that holds tensors."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def unpacked(data: bytes) -> Any:
    """Return the object that `packed` made the bytes of, in a process of this rank."""
    return torch.load(io.BytesIO(data), weights_only=False)


def begin() -> Fork | Copy:
    """Make a copy of this process, which begins to note what is drawn; return the fork, and in the fork its copy."""
    state = random.getstate()
    fork = Fork()
    if not fork.is_here:
        return fork
    random.setstate(state)  # Python gives a forked process another one
    torch.set_num_threads(1)  # those of a pool are not copied
    return Copy(fork.leave)


def found(fork: Fork) -> CopyFindings | None:
    """Wait for a copy to end, and return what it has found; None: it has not come to the end of the step."""
    return _found(fork.result(_TIMEOUT))


def rehearsed(rehearsal: Rehearsal, given: Any) -> CopyFindings | None:
    """Hand over what a rehearsal needs, and return what it has found; None as in `found`."""
    return _found(rehearsal.found(packed(given)))


def _found(data: bytes) -> CopyFindings | None:
    found: CopyFindings | None = unpacked(data) if data else None
    return found
