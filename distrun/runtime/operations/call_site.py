"""Where in user code we are: the call site of an operation, and the stack of a thread that keeps others waiting."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep


def call_site(*frameworks: str) -> str:
    """The innermost line of the calling thread that is not ours: `train.py:12 in main`; nor in `frameworks`."""
    foreign = (_PACKAGE, *frameworks)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(foreign):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"


def waiting_site(handle: object) -> str:
    """The user's line that waits for an operation, in whichever thread; empty if none does."""
    for frame in sys._current_frames().values():
        is_waiting = False
        at: FrameType | None = frame
        while at is not None:
            is_ours = at.f_code.co_filename.startswith(_PACKAGE)
            if is_waiting and not is_ours:
                return f"{Path(at.f_code.co_filename).name}:{at.f_lineno} in {at.f_code.co_name}"
            is_waiting = is_waiting or (is_ours and at.f_locals.get("self") is handle)
            at = at.f_back
    return ""


def main_stack(depth: int = 6) -> str:
    """The last `depth` frames of the main thread, formatted as in a traceback."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)[-depth:]).rstrip() if frame is not None else "  (no stack)"
