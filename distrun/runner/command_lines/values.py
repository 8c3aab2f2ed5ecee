"""The values of foreign flags, checked and converted to ours."""

from __future__ import annotations

import math

from distrun.errors import UsageError


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
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise UsageError(f"{text!r} is not a whole number >= 1: correct it")
    return int(text)


def one_of(text: str, *allowed: str) -> str:
    """Return one of some words, in whatever case it is written.

    Raises:
        UsageError: the text is none of them.
    """
    if text.lower() not in allowed:
        raise UsageError(f"{text!r} is not understood: allowed are {', '.join(allowed)}")
    return text.lower()
