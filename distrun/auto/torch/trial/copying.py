"""A copy of this process, made by fork, that continues the script while this process waits for its findings."""

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
    """The findings of a copy from one step."""

    steps: list[Gradients] = field(default_factory=list)
    """The gradients that each step of an optimizer was about to use, in order."""
    left: Gradients = field(default_factory=dict)
    """The gradients that no optimizer has used at the end of the step."""
    losses: list[tuple[graph.Signature, tuple[float, ...]]] = field(default_factory=list)
    """The signatures of the losses that `backward()` was called for, in order, and the divisors of their reductions."""
    reads: list[float] = field(default_factory=list)
    """The losses that the script has read, in order."""
    draws: list[drawing.Draw] = field(default_factory=list)
    """The random numbers that were drawn, in order."""
    tolerance: float = 0.0
    """The relative difference that rounding explains."""


class Copy:
    """The copy's own view of itself, in the forked process."""

    def __init__(self, leave: Callable[[bytes], object]) -> None:
        """`leave` is called at the end, with the packed findings."""
        self._leave = leave
        self.found, self.mode = CopyFindings(), drawing.Recording()
        self.has_left = False
        """Whether the script has left its loop."""
        self.mode.begin()

    def end(self) -> NoReturn:
        """Hand over the findings at the end of the step, and end this process."""
        self.mode.end()
        self.found.draws = self.mode.draws
        self.found.tolerance = self.mode.tolerance
        self._leave(packed(self.found))
        os._exit(0)


def is_on_gpu() -> bool:
    """Whether this process uses a GPU and therefore cannot be forked."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def packed(value: Any) -> bytes:
    """Serialise an object that may hold tensors."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def unpacked(data: bytes) -> Any:
    """Return the object that `packed` has serialised in a process of this rank."""
    return torch.load(io.BytesIO(data), weights_only=False)


def begin() -> Fork | Copy:
    """Fork this process. Return the fork in the parent, and in the child the copy, which records draws from here."""
    state = random.getstate()
    fork = Fork()
    if not fork.is_here:
        return fork
    random.setstate(state)  # Python reseeds `random` in a forked process
    torch.set_num_threads(1)  # fork does not copy the threads of torch's pool
    return Copy(fork.leave)


def found(by: Fork | Rehearsal, given: Any = None) -> CopyFindings | None:
    """Wait for a copy, or for a rehearsal that is `given` what it needs, to end.

    Returns:
        Its findings, or None if it did not reach the end of the step.
    """
    data = by.found(packed(given)) if isinstance(by, Rehearsal) else by.result(_TIMEOUT)
    findings: CopyFindings | None = unpacked(data) if data else None
    return findings
