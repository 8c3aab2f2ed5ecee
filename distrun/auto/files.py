"""Files on the ranks that do not write: what the script itself writes there stays in the process's memory.

The script of rank 0 writes its files as usual. On another rank `open(path, "w")` in the script opens a private file in
memory, and `open(path)` finds it again. Nothing of it is left when the process ends, in whatever way. Creating, moving
and removing files and folders does nothing. Only calls from the script's own code are changed: libraries keep their
caches, and reading other files works as usual.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy

_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
_OPENING = ("pathlib", "os.py", "shutil.py", "logging", "gzip.py", "bz2.py", "lzma.py", "codecs.py", "zipfile")
_PASSED = tuple(os.path.join(sysconfig.get_path("stdlib"), name) for name in _OPENING)
_UNDONE: tuple[tuple[ModuleType, tuple[str, ...]], ...] = (
    (os, ("mkdir", "makedirs", "remove", "unlink", "rename", "replace", "rmdir", "symlink")),
    (shutil, ("rmtree", "copy", "copy2", "copyfile", "copytree", "move")),
)

_private: dict[str, int] = {}  # path -> descriptor of a file in memory
_KEPT = 200  # the latest of these are kept: reading an older one finds rank 0's file


def keep_private() -> None:
    """Keep the files that the script writes in this process in memory."""
    builtins.open = io.open = _opening(io.open)
    for module, names in (*_UNDONE, (numpy, ("save", "savez", "savez_compressed", "savetxt"))):
        for name in names:
            setattr(module, name, _undone(getattr(module, name)))


def is_called_by_script() -> bool:
    """Whether the caller's caller is the script's own code, perhaps through pathlib and the like, not a library's."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PASSED):
        frame = frame.f_back
    name = frame.f_code.co_filename
    return not name.startswith((*_LIBRARIES, _OURS, "<frozen"))


def _opening(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if isinstance(file, int) or not isinstance(mode, str):
            return plain(file, mode, *arguments, **options)
        writes = any(letter in mode for letter in "wax+")
        if (writes or _private) and is_called_by_script():
            file, mode = _place(os.path.abspath(os.fsdecode(file)), mode, writes)
        return plain(file, mode, *arguments, **options)

    return opened


def _place(path: str, mode: str, writes: bool) -> tuple[str, str]:
    """Return the path and the mode for opening a file on this rank. A file that may be changed is copied first."""
    if path not in _private:
        if not writes or path.startswith(("/dev/", "/proc/")):
            return path, mode
        _private[path] = os.memfd_create(os.path.basename(path))
        if "w" not in mode and "x" not in mode and os.path.exists(path):
            _copyfile(path, _name_of(path))
        mode = mode.replace("x", "w")
        while len(_private) > _KEPT:
            os.close(_private.pop(next(iter(_private))))
    return _name_of(path), mode


def _name_of(path: str) -> str:
    return f"/proc/self/fd/{_private[path]}"


_copyfile = shutil.copyfile


def _undone(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def skipped(*arguments: Any, **options: Any) -> Any:
        return None if is_called_by_script() else plain(*arguments, **options)

    return skipped
