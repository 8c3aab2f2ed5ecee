"""Parsing and printing of link speeds and delays: 25gbit, 50us."""

from __future__ import annotations

import math
import re

from distrun.errors import UsageError

_BITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_RATE = re.compile(r"(\d+\.?\d*|\.\d+)\s*([kmgt])(?:bit|b|bits)?(?:/s|ps)?")
_DELAY = re.compile(r"(\d+\.?\d*|\.\d+)\s*(ns|us|µs|ms|s)")


def bits_per_second(text: str) -> float:
    """Return a link's speed in bits per second.

    Raises:
        UsageError: the text is not a speed > 0 with a unit.
    """
    found = _RATE.fullmatch(text.strip().lower())
    # A capital B usually means byte, so 3GB/s is refused rather than read as 3 Gbit/s.
    rate = float(found[1]) * _BITS[found[2]] if found and not re.search(r"[kmgtKMGT]B", text) else 0.0
    if not 0 < rate < math.inf:
        raise UsageError(f"{text!r} is not the speed of a link: give bits per second with a unit, 25gbit or 940mbit")
    return rate


def seconds(text: str) -> float:
    """Return a delay in seconds.

    Raises:
        UsageError: the text is not a number with a unit of time.
    """
    if not (found := _DELAY.fullmatch(text.strip().lower())):
        raise UsageError(f"{text!r} is not a delay: give a number with a unit, 50us or 1.5ms")
    return float(found[1]) * _SECONDS[found[2]]


def shown_rate(rate: float) -> str:
    """Return a rate in bits per second as text: `25 Gbit/s`."""
    for unit in ("Gbit/s", "Mbit/s", "kbit/s"):
        scale = _BITS[unit[0].lower()]
        if rate >= scale:
            return f"{rate / scale:.3g} {unit}"
    return f"{rate:.3g} bit/s"


def shown_seconds(time: float) -> str:
    """Return a time in seconds as text, with three digits and a unit: `1.5 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if time >= scale:
            return f"{time / scale:.3g} {unit}"
    return f"{time / 1e-9:.3g} ns" if time else "0 s"
