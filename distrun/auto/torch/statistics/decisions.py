"""Decisions that a script bases on values computed from samples: all ranks decide alike, or the script is refused."""

from __future__ import annotations

import linecache
import sys
import threading
from types import FrameType
from typing import NoReturn

import numpy as np

import distrun
from distrun.auto import job
from distrun.auto.refusing import refuse
from distrun.auto.torch.session import current as session, is_shared

_LINES = (
    "if loss.item() < limit:  # a loss that has a gradient is read as the whole batch's",
    "if accuracy(model, validation_loader) > best:  # a loop under torch.no_grad() has whole batches",
    "distrun --auto=scale ...  # each rank trains on batches of its own, as with DDP",
)


def refuse_decision(words: str) -> NoReturn:
    """Refuse a script that decides by a statistic of the part, which `words` describe."""
    refuse(f"the script decides by {words}: each rank would decide by its own part of the batch", _LINES)


def is_asserted() -> bool:
    """Whether the current line of the script is an assertion, which decides nothing while it holds."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("distrun", "torch"):
        frame = frame.f_back
    return frame is not None and linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(
        "assert"
    )


def agreed(value: bool) -> bool:
    """Return the truth value that all ranks use for a tensor, given this rank's, while the script works on a part.

    Refuse the script if the values differ. With --auto=scale all ranks use rank 0's.
    """
    is_own = sys._getframe(2).f_globals.get("__name__", "").startswith("distrun.")
    if is_own or session.is_loading or session.part is None or session.part.is_whole or not is_shared():
        return value
    if threading.current_thread() is not threading.main_thread():
        return value
    values = distrun.allgather(np.array([value]), name="auto.decision").tolist()
    if len(set(values)) > 1 and job.current.mode == "global":
        refuse_decision(f"a truth value that is {values[0]} on rank 0 and not on rank {values.index(not values[0])}")
    return bool(values[0])
