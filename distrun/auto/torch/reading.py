"""Reading a loss in the training loop: `loss.item()` and the like give the loss of the whole batch.

Whatever a script does with a loss besides computing its gradient (printing it, summing it up, comparing it with the
best one), it begins with one of few calls. Each of these becomes a collective of one number, if the tensor is a number
that has a graph and the batch is divided. All ranks run the same script, so they read the same losses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.jit._builtins import _register_builtin

import distrun
from distrun.auto.output import tell
from distrun.auto.torch import losses, trial
from distrun.auto.torch.session import is_shared
from distrun.auto.torch.statistics.numbers import agreed

_TESTS = ("isnan", "isinf", "isfinite")  # methods of tensors, and functions of torch
_READERS = ("item", "tolist", "__float__", "__int__", "__bool__", *_TESTS)
_NUMBERS = ("item", "__float__")
_COMPARISONS = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__")


def of_all(tensor: Tensor) -> float | None:
    """Return the value of a loss for the whole batch, or None if it is this rank's, or the part is not known.

    If it cannot be computed from the parts, return rank 0's value, so that all ranks see the same.
    """
    part = losses.part_of(tensor)
    if part is None or part.is_whole:
        return None
    loss = losses.weighted(tensor, part, divisors_of_batch=trial.divisors_of_like)
    if loss is None or loss.factor is None:
        _warn_once()
        return _first_of(float(_plain_item(tensor)))
    if all(rule is losses.ONCE for rule in loss.rules):
        return None
    return float(distrun.allreduce(np.array([_plain_item(tensor) * loss.factor]), name="auto.read")[0])


def _first_of(value: float) -> float:
    """Return rank 0's number, so that all ranks decide alike; one that is not finite if any rank's is not."""
    values = distrun.allgather(np.array([value]), name="auto.read.first")
    return float(values[0] if np.isfinite(values).all() else values.sum())


def read_in(value: Any) -> Any:
    """Return a value with all losses in it read: the value itself, or items of dictionaries, lists and tuples."""
    if type(value) is dict:
        return {key: read_in(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(read_in(each) for each in value)
    return loss_of_all(value)


def loss_of_all(loss: Any) -> Any:
    """Return the loss of the whole batch, given the loss of this rank's part; any other value as it is."""
    return _detached(loss) if _is_loss(loss) else loss


@cache
def _warn_once() -> None:
    if distrun.rank() == 0:
        tell(
            "distrun --auto: a loss whose terms are sums and means, or that does not appear in the first batches of an "
            "epoch, is read: the number is that of rank 0's part"
        )


def _is_loss(tensor: Any) -> bool:
    return (
        isinstance(tensor, Tensor)
        and tensor.grad_fn is not None
        and tensor.dim() <= 1
        and tensor.numel() == 1
        and is_shared()
    )


def _detached(tensor: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():  # a mode would call the methods of `Tensor`, which this module has replaced
        value = of_all(tensor)
        plain = _plain_detach(tensor)
        return plain if value is None else torch.full_like(plain, value)


@wraps(Tensor.detach)
def _detach(tensor: Tensor, *arguments: Any) -> Any:
    return _detached(tensor) if _is_loss(tensor) else _plain_detach(tensor, *arguments)


def _reader(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def read(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        if name == "__bool__" and not _is_loss(tensor):
            return agreed(plain(tensor))
        value = loss_of_all(tensor)
        if name not in _NUMBERS or tensor.grad_fn is None or tensor.numel() != 1 or not trial.is_running():
            return plain(value, *arguments, **options)
        with torch._C._DisableTorchDispatch():
            number = plain(_plain_detach(value))
        trial.note_read(number)
        return number

    return read


def _tester(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of `torch.isnan` or the like. Compiled and scripted functions still use the plain one."""

    @wraps(plain)
    def test(input: Any, *arguments: Any, **options: Any) -> Any:
        given = input if torch.compiler.is_compiling() else loss_of_all(input)
        return plain(given, *arguments, **options)

    _register_builtin(test, f"aten::{plain.__name__}")
    return test


def _comparison(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def compare(tensor: Tensor, other: Any) -> Any:
        tensor = loss_of_all(tensor)
        return plain(tensor, loss_of_all(other))

    return compare


_plain_item: Callable[..., Any] = Tensor.item
_plain_detach: Callable[..., Any] = Tensor.detach


def install() -> None:
    """Change the methods and functions that read a tensor of one number."""
    Tensor.detach = _detach  # type: ignore[assignment]
    for name in _READERS:
        setattr(Tensor, name, _reader(name, getattr(Tensor, name)))
    for name in _COMPARISONS:
        setattr(Tensor, name, _comparison(getattr(Tensor, name)))
    for name in _TESTS:
        setattr(torch, name, _tester(getattr(torch, name)))
