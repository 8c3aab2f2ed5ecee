"""Checking and converting the values of other launchers' flags."""

from __future__ import annotations

import math
import sys

from distrun.errors import UsageError
from distrun.host.numerals import whole_number


def number(text: str) -> float:
    """Return `text` as a number >= 0.

    Raises:
        UsageError: the text is not such a number.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"{text!r} is not a number >= 0: correct it")
    return value


def whole(text: str) -> int:
    """Return `text` as a whole number >= 1.

    Raises:
        UsageError: the text is not such a number.
    """
    number = whole_number(text, most=sys.maxsize)
    if number is None:
        raise UsageError(f"{text!r} is not a whole number >= 1: correct it")
    return number


def one_of(text: str, *allowed: str) -> str:
    """Return `text` in lower case, if that is one of the allowed words.

    Raises:
        UsageError: it is not.
    """
    if text.lower() not in allowed:
        raise UsageError(f"{text!r} is not understood: allowed are {', '.join(allowed)}")
    return text.lower()
