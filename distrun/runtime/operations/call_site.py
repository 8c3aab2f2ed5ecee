"""The call site of an operation in user code, and the stack of a thread that keeps other ranks waiting.

User code is code that does not belong to this package, is not installed, and is not part of a framework, wherever that
is.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import threading
import traceback
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep
_FRAMEWORKS = ("torch", "tensorflow", "keras", "tf_keras", "jax", "jaxlib", "optax")


def _folders(*paths: str | None) -> tuple[str, ...]:
    return tuple({os.path.join(path, "") for path in paths if path})


def _paths_of(*kinds: str) -> list[str | None]:
    return [sysconfig.get_path(kind) for kind in kinds]


_INSTALLED = _folders(*_paths_of("purelib", "platlib", "scripts"), *site.getsitepackages(), site.getusersitepackages())
_STANDARD = ("<frozen ", *_folders(*_paths_of("stdlib", "platstdlib")))  # may contain the folders of `_INSTALLED`


def call_site(frame: FrameType | None = None) -> str:
    """The innermost line of user code on the stack of `frame`, or of the caller: `train.py:12 in main`.

    A thread without user code, such as one of autograd, works for the main thread, so the main thread's line is
    returned. Where all code is installed, it is the innermost line outside this package and the frameworks.
    """
    main = threading.main_thread().ident or 0
    return _line(frame or sys._getframe(1)) or _line(sys._current_frames().get(main))


def raising_site(error: BaseException) -> str:
    """Return the innermost line of user code in the traceback of an exception, `train.py:12 in main`, or ""."""
    site = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_user_code(frame.f_code.co_filename):
            site = f"{Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name}"
    return site


def is_user_code(filename: str) -> bool:
    """Whether a source file belongs neither to this package nor to an installed one."""
    return not filename.startswith((_PACKAGE, *_INSTALLED, *_STANDARD))


def _line(frame: FrameType | None) -> str:
    installed = None
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith(_PACKAGE) and not _is_framework(frame):
            if is_user_code(filename):
                return _describe(frame)
            if installed is None and (filename.startswith(_INSTALLED) or not filename.startswith(_STANDARD)):
                installed = frame
        frame = frame.f_back
    return "" if installed is None else _describe(installed)


def _is_framework(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _FRAMEWORKS


def _describe(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"


def waiting_site(handle: object, caller: FrameType | None = None) -> str:
    """The line of user code that waits for `handle`, in any thread, or "" if none does.

    `caller` is the frame that waits, if another thread waits for it.
    """
    for frame in sys._current_frames().values():
        at: FrameType | None = frame
        while at is not None:
            if at.f_code.co_filename.startswith(_PACKAGE) and _has(at, handle):
                return call_site(caller or at)
            at = at.f_back
    return ""


def _has(frame: FrameType, handle: object) -> bool:
    values = frame.f_locals
    return values.get("self") is handle or values.get("handle") is handle


def main_stack(depth: int = 6) -> str:
    """The last `depth` frames of the main thread, formatted as in a traceback."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)[-depth:]).rstrip() if frame is not None else "  (no stack)"
