"""A copy of this process, made by fork, that goes on with the script while this one waits for what it finds."""

from __future__ import annotations

import io
import os
import random
import select
import signal
from dataclasses import dataclass, field

import torch
from torch import Tensor

from distrun.auto.torch import graph
from distrun.auto.torch.trial import drawing

Gradients = dict[int, Tensor | None]
"""The gradients of weights, by their identity, in float64."""

_PATIENCE = 120.0  # seconds that a copy may take


@dataclass
class Found:
    """The findings of a copy."""

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
    is_rounded: bool = False
    """Whether something was computed in half precision."""


class Child:
    """A copy, as the process sees it that has made it."""

    def __init__(self, process: int, descriptor: int) -> None:
        self._process, self._descriptor = process, descriptor

    def found(self) -> Found | None:
        """Wait until the copy has ended, and return what it has found; None: it has not come to the end of the step."""
        pidfd = os.pidfd_open(self._process)
        try:
            if not select.select([pidfd], [], [], _PATIENCE)[0]:
                os.kill(self._process, signal.SIGKILL)
            _, status = os.waitpid(self._process, 0)
        finally:
            os.close(pidfd)
        with os.fdopen(self._descriptor, "rb") as file:
            if status:
                return None
            file.seek(0)
            found: Found = torch.load(io.BytesIO(file.read()), weights_only=False)
            return found


class Copy:
    """A copy, as it sees itself."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.found = Found()
        self.mode = drawing.Recording()
        torch.set_num_threads(1)  # those of a pool are not copied
        self.mode.begin()

    def end(self) -> None:
        """End this process at the end of the step, and leave what it has found."""
        self.mode.end()
        self.found.draws, self.found.is_rounded = self.mode.draws, self.mode.is_rounded
        file = io.BytesIO()
        torch.save(self.found, file)
        view = file.getbuffer()
        while view:
            view = view[os.write(self._descriptor, view) :]
        os._exit(0)


def begin() -> Child | Copy:
    """Make a copy of this process, which begins to note what is drawn; return the child, and in the copy itself."""
    descriptor = os.memfd_create("distrun-trial")
    state = random.getstate()
    process = os.fork()
    if process:
        return Child(process, descriptor)
    random.setstate(state)  # Python gives a forked process another one
    return Copy(descriptor)
