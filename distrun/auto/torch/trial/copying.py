"""A copy of this process, made by fork, that goes on with the script while this one waits for what it finds."""

from __future__ import annotations

import io
import os
import random
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from distrun.auto.rehearsal import Rehearsal
from distrun.auto.torch import graph
from distrun.auto.torch.trial import drawing

_COMPARED = 1 << 17  # elements of a gradient


class Gradient(NamedTuple):
    """The part of a gradient that is compared."""

    shape: tuple[int, ...]
    norm: float
    elements: Tensor
    """Some at equal distances, of a small gradient all; float64, on the CPU."""


Gradients = dict[tuple[int, int], Gradient | None]
"""The gradients of weights, by the place of the optimizer and that of the weight in it; None where there is none."""

_PATIENCE = 120.0  # seconds that a copy may take
EXACT, _TF32, _ROUNDED = 2e-4, 5e-3, 0.05  # relative differences by rounding


@dataclass
class Found:
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
            found: Found = unpacked(file.read())
            return found


class Copy:
    """A copy, as it sees itself."""

    def __init__(self, leave: Callable[[bytes], object]) -> None:
        """`leave` is called at the end, with what was found."""
        self._leave = leave
        self.found, self.mode = Found(), drawing.Recording()
        self.has_left = False
        """Whether the script has left its loop."""
        self.mode.begin()

    def end(self) -> NoReturn:
        """End this process at the end of the step, and leave what it has found."""
        self.mode.end()
        self.found.draws = self.mode.draws
        self.found.tolerance = _ROUNDED if self.mode.is_rounded else _TF32 if self.mode.is_tf32 else EXACT
        self._leave(packed(self.found))
        os._exit(0)


def rehearsed(rehearsal: Rehearsal, given: Any) -> Found | None:
    """Hand over what a rehearsal needs, and return what it has found; None: it has not come to the end of the step."""
    told = rehearsal.found(packed(given))
    found: Found | None = unpacked(told) if told else None
    return found


def is_on_gpu() -> bool:
    """Whether this process uses a GPU, so that it cannot be forked."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def gradient_of(weight: Tensor) -> Gradient | None:
    """Return the part of a weight's gradient that is compared; None: it has none."""
    gradient = weight.grad
    if gradient is None:
        return None
    flat = (gradient.to_dense() if gradient.is_sparse else gradient).detach().flatten()
    elements = flat[:: -(-flat.numel() // _COMPARED) or 1].to("cpu", torch.float64, copy=True)
    norm = elements.norm() if elements.numel() == flat.numel() else flat.norm(dtype=torch.float64)
    return Gradient(tuple(gradient.shape), float(norm), elements)


def packed(value: Any) -> bytes:
    """Return the bytes of an object that holds tensors."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def unpacked(data: bytes) -> Any:
    """Return the object that `packed` made the bytes of, in a process of this rank."""
    return torch.load(io.BytesIO(data), weights_only=False)


def begin() -> Child | Copy:
    """Make a copy of this process, which begins to note what is drawn; return the child, and in the copy itself."""
    descriptor = os.memfd_create("distrun-trial")
    state = random.getstate()
    process = os.fork()
    if process:
        return Child(process, descriptor)
    random.setstate(state)  # Python gives a forked process another one
    torch.set_num_threads(1)  # those of a pool are not copied
    return Copy(partial(_write, descriptor))


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
