"""The cache of a host: a folder of the user's own, with what distrun has brought there.

`packages/<digest>`, `blobs/<digest>`, `trees/<job>` and `environments/<digest>`. This module needs nothing but the
standard library, as it is also sent as text.
"""

from __future__ import annotations

import fcntl
import glob
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

_STALE = 3600.0  # seconds after which what is half written counts as left by a process that was killed
HALF = ".distrun-half-"
"""The beginning of the names of what is half written."""


class CacheError(Exception):
    """There is no place for the cache, or nothing can be written there; the text is a sentence."""


def open_cache(environ: Mapping[str, str]) -> str:
    """Return the cache's folder, which is this user's alone; make it if need be.

    It is `$XDG_CACHE_HOME/distrun`, or else `~/.cache/distrun`; where that cannot be written, a folder of this user's
    among the temporary files, under another name if another user has taken its own.

    Raises:
        CacheError: neither can be used.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # then the variable does not count, as its specification says
        base = os.path.join(os.path.expanduser("~"), ".cache")
    temporary = os.path.join(tempfile.gettempdir(), f"distrun-{os.getuid()}")
    folders = (os.path.join(base, "distrun"), temporary, *sorted(glob.glob(f"{glob.escape(temporary)}-*")))
    problems = []
    for folder in folders:
        try:
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            found = os.lstat(folder)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise PermissionError(1, "it is not this user's own folder")
            if found.st_mode & 0o077:
                os.chmod(folder, 0o700)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            problems.append(f"{folder} ({error.strerror})")
            continue
        return folder
    with suppress(OSError):
        return tempfile.mkdtemp(prefix=f"{os.path.basename(temporary)}-")
    raise CacheError(
        f"there is no place for what distrun brings: {', '.join(problems)}; make one of them writable, or set "
        "XDG_CACHE_HOME there"
    )


def fill(place: str, write: Callable[[str], None]) -> None:
    """Make a folder that appears as a whole or not at all; one that another process has made meanwhile stays.

    Args:
        place: its path.
        write: is given the path of an empty folder, and fills it.

    Raises:
        OSError: it cannot be written.
    """
    shelf = os.path.dirname(place)
    os.makedirs(shelf, mode=0o700, exist_ok=True)
    clear_half_written(shelf)
    half = os.path.join(shelf, f"{HALF}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        os.mkdir(half, 0o700)
        write(half)
        try:
            os.rename(half, place)
        except OSError:
            if not os.path.isdir(place):
                raise
    finally:
        shutil.rmtree(half, ignore_errors=True)


def write_file(path: str, data: bytes, mode: int = 0o600) -> None:
    """Write a file that appears as a whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    half = os.path.join(os.path.dirname(path), f"{HALF}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with naming(path), open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        os.rename(half, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(half)
        raise


def discard(place: str) -> None:
    """Delete a folder, as far as that is possible; nobody finds it half deleted."""
    aside = os.path.join(os.path.dirname(place), f"{HALF}{os.getpid()}-{secrets.token_hex(4)}")
    with suppress(OSError):
        os.rename(place, aside)
        shutil.rmtree(aside, ignore_errors=True)


def clear_half_written(shelf: str) -> None:
    """Delete what processes that were killed have left half written in a folder of the cache."""
    now = time.time()
    with os.scandir(shelf) as entries:
        left = [entry for entry in entries if entry.name.startswith(HALF)]
    for entry in left:
        with suppress(OSError):
            # Not when it was written: a copy of a user's file has the time of that before it has its name.
            if now - entry.stat(follow_symlinks=False).st_ctime > _STALE:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def by_last_use(shelf: str) -> list[tuple[float, str]]:
    """Return when each folder of a folder of the cache was used last, and its path; the newest first."""
    found = []
    with suppress(OSError), os.scandir(shelf) as entries:
        for entry in entries:
            with suppress(OSError):  # another process has just deleted it
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    found.append((entry.stat().st_mtime, entry.path))
    return sorted(found, reverse=True)


def discard_unused(place: str) -> None:
    """Delete a folder unless a process of this host holds it."""
    with suppress(OSError):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            discard(place)
        finally:
            os.close(descriptor)


def hold(place: str) -> None:
    """Note that a folder is used now, and have no process of this host delete it while this one lives, whichever
    program it becomes."""
    touch(place)
    with suppress(OSError):  # where there are no locks nothing that is old is deleted
        descriptor = os.open(place, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.set_inheritable(descriptor, True)


def touch(place: str) -> None:
    """Note that something is used now."""
    with suppress(OSError):
        os.utime(place)


def explain(error: OSError, cache: str) -> str:
    """Return why something cannot be written, to the cache as a rule, with the remedy."""
    path = str(error.filename or cache).partition(f"/{HALF}")[0]
    said = f"{path} cannot be written: {error.strerror}; make room or give the right to write there"
    return f"{said}, or set XDG_CACHE_HOME there to a folder elsewhere" if path.startswith(cache) else said


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Have errors say the path: those of writing, as on a full disk, say none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise
