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


def main_stack(depth: int = 6) -> str:
    """The last `depth` frames of the main thread, formatted as in a traceback."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)[-depth:]).rstrip() if frame is not None else "  (no stack)"
