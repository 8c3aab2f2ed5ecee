"""Files on the ranks that do not write: what the script itself writes there goes to a folder of the rank's own.

The script of rank 0 writes its files as ever. On another rank `open(path, "w")` in the script opens a private file,
and `open(path)` finds it again; making, moving and removing files and folders does nothing. Only calls from the
script's own code are changed: libraries keep their caches, and reading stays as it is.
"""

from __future__ import annotations

import atexit
import builtins
import io
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
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

_folder = ""
_private: dict[str, str] = {}


def keep_private(program: Sequence[str]) -> None:
    """Keep what the script writes in this process to a folder of its own, which is removed at the end."""
    builtins.open = io.open = _opening(io.open)
    for module, names in (*_UNDONE, (numpy, ("save", "savez", "savez_compressed", "savetxt"))):
        for name in names:
            setattr(module, name, _undone(getattr(module, name)))


def _own_folder() -> str:
    """Return the folder for private files; it is made when the first one is written."""
    global _folder
    if not _folder:
        _folder = tempfile.mkdtemp(prefix="distrun-auto-")
        atexit.register(_remove, os.getpid())
    return _folder


def _remove(owner: int) -> None:
    if os.getpid() == owner:  # and no child of a fork
        _rmtree(_folder, ignore_errors=True)


_rmtree = shutil.rmtree


def is_called_by_script() -> bool:
    """Whether the caller's caller is code of the script's own, perhaps through pathlib, and no library's."""
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
            file = _place(os.path.abspath(os.fsdecode(file)), writes, mode)
        return plain(file, mode, *arguments, **options)

    return opened


def _place(path: str, writes: bool, mode: str) -> str:
    """Return where a file is for this rank; one that is about to be changed is copied first."""
    if path in _private or not writes or not os.path.isabs(path) or path.startswith(("/dev/", "/proc/")):
        return _private.get(path, path)
    private = _private[path] = os.path.join(_own_folder(), f"{len(_private)}-{os.path.basename(path)}")
    if "w" not in mode and "x" not in mode and os.path.exists(path):
        _copyfile(path, private)
    return private


_copyfile = shutil.copyfile


def _undone(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def skipped(*arguments: Any, **options: Any) -> Any:
        return None if is_called_by_script() else plain(*arguments, **options)

    return skipped
