"""Ending a job whose script cannot be distributed as it stands: all ranks end, and one of them prints the reason.

What is refused, and where: scripts that distribute themselves in `self_distributed`, losses that are not means over the
batch in `losses`, gradients that are changed before they are averaged in `backward`, optimizers that use more than
gradients in `optimizers`, data that differ between ranks in `loaders`, `data` and `trial`, and numbers of a part that
are used as numbers of the batch in `statistics` and `metrics`, each in the room of its framework. `source` refuses what
a script's text shows, and `comparing` ranks that have diverged. docs/auto-checks.md lists all of them for users.
"""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

import distrun
from distrun.auto import job, output
from distrun.errors import DistrunError

STATUS = 2
"""The exit status of a refused script, the same as for other wrong usage."""
_TIMEOUT = 10.0  # seconds: how long a rank waits for the others to refuse as well


class Refusal(SystemExit):
    """A script is refused. This is not an `Exception`, so that the script's own handlers do not catch it."""

    def __init__(self, reason: str, lines: Sequence[str] = ()) -> None:
        super().__init__(STATUS)
        self.reason = reason
        self.lines = tuple(lines)


def text_of(reason: str, lines: Sequence[str] = ()) -> str:
    """Return the message of a refusal: the reason, and the lines to write instead."""
    head = textwrap.fill(f"distrun --auto: refused: {reason}", 120, subsequent_indent="  ", break_long_words=False)
    return "\n".join([head, *(["Write instead:"] if lines else []), *(f"    {line}" for line in lines)])


def refuse(reason: str, lines: Sequence[str] = ()) -> NoReturn:
    """End the job, because this script cannot be right on several ranks.

    Rank 0 prints the reason. Another rank prints it only if not all ranks refuse.

    Args:
        reason: a clause after "refused:", with the line or the value that is the cause.
        lines: lines of code that the user may write instead.

    Raises:
        Refusal: always. The process ends with status 2.
    """
    if job.current.is_copy:
        os._exit(1)  # the ranks will refuse it themselves
    if not distrun.is_initialized() or distrun.rank() == 0:
        output.tell(text_of(reason, lines))
        _await_others()
    elif not _await_others():
        output.tell(text_of(reason, lines))
    raise Refusal(reason, lines)


def _await_others() -> bool:
    """Wait until all ranks refuse, so that none ends the job before rank 0 has printed. Return whether they do."""
    if not distrun.is_initialized() or distrun.size() == 1:
        return True
    try:
        handle = distrun.allreduce_async(np.zeros(1), name="auto.refusal")
        deadline = time.monotonic() + _TIMEOUT
        while not handle.poll():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
    except DistrunError:
        return False
    return True
