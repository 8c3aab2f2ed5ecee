"""Numbers read from a statistic of the part: a script may print them and add them up, but not decide by them.

`correct += (output.argmax(1) == y).sum().item()` counts in this rank's part only. Each rank then has a different
number, none has the batch's, and a comparison might end the training on one rank and not on another. So these numbers
have their own types, which arithmetic keeps. Where the script's code compares one, the script is refused.
"""

from __future__ import annotations

import functools
import operator
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import distrun
from distrun.auto.output import tell
from distrun.auto.torch.session import current as session, is_shared
from distrun.auto.torch.statistics.decisions import is_asserted, refuse_decision

_INSTALLED = (
    str(Path(distrun.__file__).parent),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
_SCHEDULERS = "torch.optim.lr_scheduler"
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_FIRST = 4  # iterations: after these, a decision outside the loop only warns
_UNARY = ("neg", "pos", "abs")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


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


def _binary(function: Callable[[Any, Any], Any], is_reflected: bool) -> Callable[[Any, Any], Any]:
    def compute(number: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        operands = _plain(number), _plain(other)
        return of(function(*(reversed(operands) if is_reflected else operands)), number.words)

    return compute


def _unary(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda number: of(function(_plain(number)), number.words)


def _comparison(function: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def compare(number: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        return _compared(number, function, other, sys._getframe(1))

    return compare


for _kind in (PartInt, PartFloat):
    for _name in _BINARY:
        setattr(_kind, f"__{_name}__", _binary(getattr(operator, _name), is_reflected=False))
        setattr(_kind, f"__r{_name}__", _binary(getattr(operator, _name), is_reflected=True))
    for _name in _UNARY:
        setattr(_kind, f"__{_name}__", _unary(getattr(operator, _name)))
    for _name in _COMPARISONS:
        setattr(_kind, f"__{_name}__", _comparison(getattr(operator, _name)))
