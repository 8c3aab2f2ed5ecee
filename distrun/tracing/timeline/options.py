"""The options of a timeline, and how users' texts for them are parsed and checked."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from distrun.errors import UsageError

DEFAULT_LIMIT = 50
"""The default limit of a timeline, in megabytes."""
_SMALLEST_LIMIT = 1


@dataclass(frozen=True)
class TimelineOptions:
    """The options of one timeline."""

    file: str
    """The file to write. It is compressed by gzip if its name ends in .gz."""
    steps: range | None = None
    """The training steps to show, counted from 1. None: all."""
    operations: bool = False
    """Whether each operation has its own row."""
    limit: int = DEFAULT_LIMIT * 1_000_000
    """The most bytes of the file."""
    mark_cycles: bool = False
    """Whether to mark when decisions of the coordinator arrive."""


def parse_steps(option: str, text: str) -> range:
    """Return the steps in a text such as `100:120`, `100:`, `:120` or `100`. Both ends are included.

    Args:
        option: the option or variable that the text is for, for errors: `--timeline-steps ` or
            `DISTRUN_TIMELINE_STEPS=`.
        text: its value.

    Raises:
        UsageError: the text is in none of these forms.
    """
    first, colon, last = text.partition(":")
    low = int(first) if first.isascii() and first.isdecimal() else 1 if not first and colon and last else 0
    high = int(last) if last.isascii() and last.isdecimal() else 0 if last else sys.maxsize if colon else low
    if not 0 < low <= high:
        raise UsageError(f"{option}{text!r} is no range of steps: give the first and the last, from 1, as in 100:120")
    return range(low, high + 1)


def parse_limit(option: str, text: str) -> int:
    """Return the bytes for a text that is a number of megabytes.

    Raises:
        UsageError: it is not such a number, or too small for a timeline.
    """
    megabytes = int(text) if text.isascii() and text.isdecimal() else 0
    if megabytes < _SMALLEST_LIMIT:
        raise UsageError(f"{option}{text!r} is no number of megabytes: give {_SMALLEST_LIMIT} or more")
    return megabytes * 1_000_000


def check_file(option: str, file: str) -> None:
    """Check that a file can be written, before anything depends on it.

    Raises:
        UsageError: it cannot.
    """
    folder = os.path.dirname(os.path.abspath(file))
    if not os.path.isdir(folder):
        raise UsageError(f"{option}{file!r}: there is no folder {folder!r}: make it, or give a file in one that exists")
    if os.path.isdir(file):
        raise UsageError(f"{option}{file!r} is a folder: give the name of a file")
    if not os.access(file if os.path.exists(file) else folder, os.W_OK):
        raise UsageError(f"{option}{file!r} cannot be written: give a file that may be written")
