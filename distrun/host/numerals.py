"""Numbers from users and schedulers, and their limits."""

from __future__ import annotations

import math

MOST_SLOTS = 8192
"""The most slots of a host, and the limit for anything else that is counted per host: the most processors of Linux."""
MOST_RANKS = 1 << 20
"""The most ranks of a job."""


def whole_number(text: str, least: int = 1, most: int = MOST_RANKS) -> int | None:
    """Return the number that `text` has in decimal digits, or None if it is not a number from `least` to `most`."""
    if not (text.isascii() and text.isdecimal()):
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(most)):  # Python refuses to read thousands of digits
        return None
    number = int(digits)
    return number if least <= number <= most else None


def real_number(text: str) -> float | None:
    """Return the finite number >= 0 that `text` has, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None
