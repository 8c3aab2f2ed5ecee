"""The values of foreign flags, checked and converted to ours."""

from __future__ import annotations

import math
import sys

from distrun.errors import UsageError
from distrun.host.numerals import whole_number


def number(text: str) -> float:
    """Return a number >= 0.

    Raises:
        UsageError: the text is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"{text!r} is not a number >= 0: correct it")
    return value


def whole(text: str) -> int:
    """Return a whole number >= 1.

    Raises:
        UsageError: the text is none.
    """
    number = whole_number(text, most=sys.maxsize)
    if number is None:
        raise UsageError(f"{text!r} is not a whole number >= 1: correct it")
    return number


def one_of(text: str, *allowed: str) -> str:
    """Return one of some words, in whatever case it is written.

    Raises:
        UsageError: the text is none of them.
    """
    if text.lower() not in allowed:
        raise UsageError(f"{text!r} is not understood: allowed are {', '.join(allowed)}")
    return text.lower()
