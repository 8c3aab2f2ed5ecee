"""Numbers and truth values of the part: a script may print them and add them up, but not decide by them.

`correct += (output.argmax(1) == y).sum().item()` counts in this rank's part only. Each rank then has a different
number, none has the batch's, and a comparison might end the training on one rank and not on another. So these numbers
have their own types, which arithmetic keeps. Where the script's code compares one, the script is refused. All ranks use
the same truth value of a tensor, or the script is refused.
"""

from __future__ import annotations

import functools
import linecache
import operator
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np

import distrun
from distrun.auto import job
from distrun.auto.output import tell
from distrun.auto.refusing import refuse
from distrun.auto.torch.session import current as session, is_shared

_LINES = (
    "if loss.item() < limit:  # a loss that has a gradient is read as the whole batch's",
    "if accuracy(model, validation_loader) > best:  # a loop under torch.no_grad() has whole batches",
    "distrun --auto=scale ...  # each rank trains on batches of its own, as with DDP",
)
_INSTALLED = (
    str(Path(distrun.__file__).parent),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
_SCHEDULERS = "torch.optim.lr_scheduler"
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_FIRST = 4  # iterations: after these, a decision outside the loop only warns
_UNARY = ("neg", "pos", "abs")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def refuse_decision(words: str) -> NoReturn:
    """Refuse a script that decides by a statistic of the part, which `words` describe."""
    refuse(f"the script decides by {words}: each rank would decide by its own part of the batch", _LINES)


def is_asserted() -> bool:
    """Whether the current line of the script is an assertion, which decides nothing while it holds."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("distrun", "torch"):
        frame = frame.f_back
    return frame is not None and linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(
        "assert"
    )


def agreed(value: bool) -> bool:
    """Return the truth value that all ranks use for a tensor, given this rank's, while the script works on a part.

    Refuse the script if the values differ. With --auto=scale all ranks use rank 0's.
    """
    is_own = sys._getframe(2).f_globals.get("__name__", "").startswith("distrun.")
    if is_own or session.is_loading or session.part is None or session.part.is_whole or not is_shared():
        return value
    if threading.current_thread() is not threading.main_thread():
        return value
    values = distrun.allgather(np.array([value]), name="auto.decision").tolist()
    if len(set(values)) > 1 and job.current.mode == "global":
        refuse_decision(f"a truth value that is {values[0]} on rank 0 and not on rank {values.index(not values[0])}")
    return bool(values[0])


class _OfPart:
    """The methods of both types. `base` is the built-in type that each stands for."""

    base: Any
    words = ""

    def __float__(self) -> float:
        return _converted(self, sys._getframe(1))

    def __bool__(self) -> bool:
        return _compared(self, operator.ne, 0, sys._getframe(1))

    def __hash__(self) -> int:
        return hash(_plain(self))

    def __reduce__(self) -> Any:
        return self.base, (_plain(self),)


class PartFloat(_OfPart, float):
    """A float that was computed from a statistic of the part."""

    base = float


class PartInt(_OfPart, int):
    """An integer that was computed from a statistic of the part."""

    base = int


def of(value: Any, words: str) -> Any:
    """Return a number as one of a statistic that `words` describe. Other values, truth values included, stay as they
    are.
    """
    kind = {int: PartInt, float: PartFloat}.get(type(value))
    if kind is None:
        return value
    number = kind(value)
    number.words = words
    return number


def _plain(value: Any) -> Any:
    """Return a number of this module's types as a plain one, and any other value as it is."""
    return value.base.conjugate(value) if isinstance(value, _OfPart) else value


def _converted(number: Any, caller: FrameType) -> float:
    """Return a number as a plain float. Refuse a scheduler, such as `ReduceLROnPlateau`, which would decide by it."""
    if caller.f_globals.get("__name__") == _SCHEDULERS and is_shared():
        refuse_decision(number.words)
    return float(_plain(number))


def _is_of_script(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(_INSTALLED)


def _compared(number: Any, function: Callable[[Any, Any], bool], other: Any, caller: FrameType) -> bool:
    if is_shared() and _is_of_script(caller) and not is_asserted():
        if session.part is not None or session.iteration <= _FIRST:
            refuse_decision(number.words)
        _warn(number.words)
    return function(_plain(number), _plain(other))


@functools.cache
def _warn(words: str) -> None:
    """Warn once that the script decides by a statistic. To refuse it this late would lose what it has trained."""
    if distrun.rank() == 0:
        tell(f"distrun --auto: warning: the script decides by {words}, which is of rank 0's part of the batch")


def _computing(function: Callable[..., Any], is_reflected: bool = False) -> Callable[..., Any]:
    def compute(number: Any, *others: Any) -> Any:
        if not all(isinstance(other, (int, float)) for other in others):
            return NotImplemented
        operands = [_plain(each) for each in (number, *others)]
        return of(function(*(reversed(operands) if is_reflected else operands)), number.words)

    return compute


def _comparison(function: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def compare(number: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        return _compared(number, function, other, sys._getframe(1))

    return compare


for _kind in (PartInt, PartFloat):
    for _name in (*_BINARY, *_UNARY):
        setattr(_kind, f"__{_name}__", _computing(getattr(operator, _name)))
    for _name in _BINARY:
        setattr(_kind, f"__r{_name}__", _computing(getattr(operator, _name), is_reflected=True))
    for _name in _COMPARISONS:
        setattr(_kind, f"__{_name}__", _comparison(getattr(operator, _name)))
