"""The cache of a host: a folder that only the user can access, for everything that distrun has brought there.

`packages/<digest>`, `blobs/<digest>`, `trees/<job>` and `environments/<digest>`. This module uses only the standard
library, as it is also sent as text.
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

_STALE = 3600.0  # seconds after which an unfinished file or folder counts as left by a killed process
HALF = ".distrun-half-"
"""The prefix of the names of unfinished files and folders."""


class CacheError(Exception):
    """No folder can be used as the cache. The text is a sentence."""


def open_cache(environ: Mapping[str, str]) -> str:
    """Return the cache's folder, which only this user can access. It is created if needed.

    It is `$XDG_CACHE_HOME/distrun`, or else `~/.cache/distrun`. If that is not writable, it is this user's own folder
    among the temporary files, with another name if another user has taken the usual one.

    Raises:
        CacheError: none of these can be used.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # its specification says to ignore relative paths
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
    """Create a folder atomically, so that it is never seen half filled: `write` fills an empty one, whose path it gets.
    If another process has created it meanwhile, that one stays. Raises OSError.
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
    """Write a file atomically, so that it is never seen half written. Raises OSError."""
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
    """Delete a folder as far as possible. It is renamed first, so that it is never seen half deleted."""
    aside = os.path.join(os.path.dirname(place), f"{HALF}{os.getpid()}-{secrets.token_hex(4)}")
    with suppress(OSError):
        os.rename(place, aside)
        shutil.rmtree(aside, ignore_errors=True)


def clear_half_written(shelf: str) -> None:
    """Delete unfinished files and folders that killed processes have left in the folder `shelf`."""
    now = time.time()
    with os.scandir(shelf) as entries:
        left = [entry for entry in entries if entry.name.startswith(HALF)]
    for entry in left:
        with suppress(OSError):
            # By ctime, not mtime: a copy of a user's file gets the mtime of the original before its final name.
            if now - entry.stat(follow_symlinks=False).st_ctime > _STALE:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def by_last_use(shelf: str) -> list[tuple[float, str]]:
    """Return time of last use and path of each folder in `shelf`, the most recent first."""
    found = []
    with suppress(OSError), os.scandir(shelf) as entries:
        for entry in entries:
            with suppress(OSError):  # another process has just deleted it
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    found.append((entry.stat().st_mtime, entry.path))
    return sorted(found, reverse=True)


def discard_unused(place: str) -> None:
    """Delete a folder unless a process on this host holds it."""
    with suppress(OSError):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            discard(place)
        finally:
            os.close(descriptor)


def hold(place: str) -> None:
    """Mark a folder as used now, and lock it against deletion by processes on this host while this process lives. The
    lock survives exec, as the descriptor is inherited.
    """
    touch(place)
    with suppress(OSError):  # a file system without locks: `discard_unused` fails there, too
        descriptor = os.open(place, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.set_inheritable(descriptor, True)


def touch(place: str) -> None:
    """Set the time of last use of a file or folder to now."""
    with suppress(OSError):
        os.utime(place)


def explain(error: OSError, cache: str) -> str:
    """Return the reason of a failed write, usually to the cache, with the remedy."""
    path = str(error.filename or cache).partition(f"/{HALF}")[0]
    said = f"{path} cannot be written: {error.strerror}; make room or give the right to write there"
    return f"{said}, or set XDG_CACHE_HOME there to a folder elsewhere" if path.startswith(cache) else said


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Add `path` to errors: OSErrors of write(2), such as a full disk, do not have it."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise
