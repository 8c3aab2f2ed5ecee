"""Whole numbers that users and schedulers give, and the most that anything is made of."""

from __future__ import annotations

MOST_SLOTS = 8192
"""The slots of a host, and whatever else a host has one by one: more processors than that no Linux has."""
MOST_RANKS = 1 << 20
"""The ranks of a job."""


def whole_number(text: str, least: int = 1, most: int = MOST_RANKS) -> int | None:
    """Return the number that a text of decimal digits stands for; None if it is none from `least` to `most`."""
    if not (text.isascii() and text.isdecimal()):
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(most)):  # Python refuses to read thousands of digits
        return None
    number = int(digits)
    return number if least <= number <= most else None
