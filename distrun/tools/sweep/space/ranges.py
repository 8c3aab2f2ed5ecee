"""The ranges of parameters, as they are written on the command line: `1..4`, `log:1e-4..1e-1`, `0..1/0.25`, `a|b|c`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distrun.errors import UsageError

Value = int | float | str
"""A value of a parameter. Choices stay as they are written."""

Values = Mapping[str, Value]
"""The values of a trial's parameters, by name."""

_ALLOWED = "allowed are LOW..HIGH, log:LOW..HIGH, LOW..HIGH/STEP and choices A|B|C"
_MOST = 1 << 20  # values of a range with steps


@dataclass(frozen=True)
class Choices:
    """A list of values."""

    values: tuple[str, ...]

    def listed(self) -> Sequence[Value] | None:
        """Return all values."""
        return self.values

    def __str__(self) -> str:
        return "|".join(self.values)


@dataclass(frozen=True)
class Integers:
    """The integers from `low` to `high`, both included, in steps of `step`."""

    low: int
    high: int
    step: int = 1
    is_log: bool = False

    def listed(self) -> Sequence[Value] | None:
        """Return all values, or None if the range is logarithmic, which has no even steps."""
        return None if self.is_log else range(self.low, self.high + 1, self.step)

    def __str__(self) -> str:
        return f"{'log:' * self.is_log}{self.low}..{self.high}" + (f"/{self.step}" if self.step > 1 else "")


@dataclass(frozen=True)
class Floats:
    """The numbers from `low` to `high`, both included, in steps of `step` if it is given."""

    low: float
    high: float
    step: float | None = None
    is_log: bool = False

    def listed(self) -> Sequence[Value] | None:
        """Return all values, or None if there is no step."""
        if self.step is None:
            return None
        count = math.floor((self.high - self.low) / self.step + 1e-9) + 1
        digits = 12 + max(0, -math.floor(math.log10(self.step)))  # finer than the step
        return [round(self.low + number * self.step, digits) for number in range(count)]

    def __str__(self) -> str:
        step = "" if self.step is None else f"/{self.step!r}"
        return f"{'log:' * self.is_log}{self.low!r}..{self.high!r}{step}"


Range = Choices | Integers | Floats


def parse_range(name: str, text: str) -> Range:
    """Return the range of parameter `name` that a text such as `log:1e-4..1e-1` describes.

    Raises:
        UsageError: the text is not a range.
    """
    is_log = text.startswith("log:")
    body = text.removeprefix("log:")
    if "|" in body or ".." not in body:  # choices may be paths such as ../a
        values = tuple(body.split("|"))
        if is_log or not all(values) or len(set(values)) < len(values):
            raise UsageError(f"parameter {name}={text!r} is no range, or names a choice twice: {_ALLOWED}")
        return Choices(values)
    low, _, rest = body.partition("..")
    high, slash, step = rest.partition("/")
    numbers = [_number(name, text, word) for word in (low, high, *([step] if slash else []))]
    return _checked(name, text, numbers, is_log)


def _number(name: str, text: str, word: str) -> int | float:
    for kind in (int, float):
        try:
            value = kind(word)
            if math.isfinite(value):
                return value
        except (ValueError, OverflowError):
            continue
    raise UsageError(f"parameter {name}={text!r}: {word!r} is no finite number; {_ALLOWED}")


def _checked(name: str, text: str, numbers: list[int | float], is_log: bool) -> Range:
    low, high, *steps = numbers
    step = steps[0] if steps else None
    if low >= high:
        raise UsageError(f"parameter {name}={text!r}: {low} is not below {high}; give LOW..HIGH with numbers that rise")
    if not math.isfinite(float(high) - float(low)):
        raise UsageError(f"parameter {name}={text!r}: the range is wider than 1.8e308; give one that is not")
    if is_log and (low <= 0 or step is not None):
        raise UsageError(f"parameter {name}={text!r}: a logarithmic range begins above 0 and has no step; {_ALLOWED}")
    if step is not None and not (0 < step <= high - low and (high - low) / step < _MOST):
        raise UsageError(
            f"parameter {name}={text!r}: {step} is no step from {low} to {high}; give a smaller one above 0"
        )
    if all(isinstance(number, int) for number in numbers):
        return Integers(int(low), int(high), int(step or 1), is_log)
    return Floats(float(low), float(high), None if step is None else float(step), is_log)


def plain(value: Value) -> Value:
    """Return a value for JSON: choices that are written as numbers become numbers."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        return number if math.isfinite(number) else value
    return value


def shown(value: Value) -> str:
    """Return a value as text for people, floats with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
