"""The user's code on a host: a folder for each job, assembled from contents that are sent only once.

The folder has copies, not hard links: a rank may write into its code and must not change the code of later jobs.
Copying 1,000 small files takes 0.1 s.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import socket
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from distrun.runner.shipping.blobs import Blobs, read_digest
from distrun.runner.shipping.cache import HALF, by_last_use, clear_half_written, discard_unused, fill, hold, write_file
from distrun.runner.shipping.first_stage import Launcher
from distrun.runner.shipping.manifest import FileEntry, Manifest

RECORD = ".distrun-shipped.json"
"""The file in a folder named by the user that lists which of its files were shipped."""

_BYTECODE = "__pycache__"
_TREES_KEPT = 10  # the newest folders of jobs on this host
_KEPT_OF_OTHERS = 30 * 86400.0  # seconds since the start of a job on another host with the same cache
_ATTEMPTS = 3


def receive(launcher: Launcher, cache: str, number: int, task: dict[str, Any]) -> str:
    """Bring a user's folder to this host, and return its path here.

    Args:
        launcher: the connection with the launcher.
        cache: the host's cache.
        number: the number of the folder in the job.
        task: an object with `job`, the job's id, `manifest`, the digest of the manifest, and `to`, the folder on hosts
            that the user has named, or empty for a new folder per job.

    Raises:
        OSError: it cannot be written.
    """
    packed = launcher.ask(ask="manifest", tree=number)
    if hashlib.sha256(packed).hexdigest() != task["manifest"]:
        launcher.refuse("the list of the files to ship was damaged on its way: try again")
    manifest = Manifest.from_json(zlib.decompress(packed))
    blobs = Blobs(cache)
    source = _Source(launcher, blobs, number)
    if lacking := blobs.lacking(manifest.files):
        source.fetch(lacking)
    if task["to"]:
        place = os.path.join(os.path.expanduser("~"), os.path.expanduser(task["to"]))
        mirror(place, manifest, source)
    else:
        place = os.path.join(cache, "trees", f"{task['job']}-{socket.gethostname()}-{number}-{secrets.token_hex(2)}")
        fill(place, lambda half: source.write(half, manifest))
        hold(place)
        prune(os.path.dirname(place))
    blobs.prune()
    return place


class _Source:
    """Writes the files of a manifest, and requests damaged contents again."""

    def __init__(self, launcher: Launcher, blobs: Blobs, number: int) -> None:
        self.launcher = launcher
        self._blobs = blobs
        self._number = number

    def fetch(self, files: list[FileEntry]) -> None:
        """Request contents from the launcher, and store them in the cache."""
        pending = self.launcher.ask(ask="contents", tree=self._number, digests=[entry.digest for entry in files])
        for entry in files:

            def pieces(left: int = entry.size) -> Iterator[bytes]:
                nonlocal pending
                while left:
                    pending = pending or self.launcher.receive()
                    piece, pending = pending[:left], pending[left:]
                    left -= len(piece)
                    yield piece

            self._blobs.store(entry, pieces())

    def write(self, place: str, manifest: Manifest) -> None:
        """Fill an empty folder."""
        for folder in manifest.folders:
            os.mkdir(os.path.join(place, folder.path))
        for entry in manifest.files:
            self.copy(entry, os.path.join(place, entry.path))
        for link in manifest.links:
            os.symlink(link.target, os.path.join(place, link.path))
        _set_modes(place, manifest)

    def copy(self, entry: FileEntry, target: str) -> None:
        """Write one file."""
        for _ in range(_ATTEMPTS):
            if self._blobs.copy(entry, target):
                return
            self.fetch([entry])
        self.launcher.refuse(f"{entry.path} was damaged on its way, or while it was written to the cache: try again")


def mirror(place: str, manifest: Manifest, source: _Source) -> None:
    """Make a folder that the user has named hold a manifest's files. Files that were shipped before and are not in the
    manifest are deleted, and all other files stay. The host is refused if one of these would have to be deleted.

    Raises:
        OSError: it cannot be written.
    """
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        source.launcher.refuse(f"{place} there is no folder, or not in one: name another by --ship DIR:REMOTE")
    record = os.path.join(place, RECORD)
    with _locked(place):
        before = _shipped_before(record)
        now = manifest.paths
        for path in sorted(before.difference(now), reverse=True):
            if _is_in(place, path):
                _remove(os.path.join(place, path))
        if problem := _in_the_way(place, manifest, before):
            source.launcher.refuse(f"{problem}: move that away there, or name another folder by --ship DIR:REMOTE")
        # Files count as shipped before they are written, in case this process is killed meanwhile.
        write_file(record, json.dumps(sorted(before.union(now))).encode("ascii"))
        for folder in manifest.folders:
            target = os.path.join(place, folder.path)
            if not _is_folder(target):
                _remove(target)
                with suppress(FileExistsError):  # another host that shares the folder was faster
                    os.mkdir(target, 0o700)
        for path in ("", *(folder.path for folder in manifest.folders)):
            clear_half_written(os.path.join(place, path))
        for entry in manifest.files:
            target = os.path.join(place, entry.path)
            if not _is_same(entry, target):
                _replace(target, partial(source.copy, entry))
        for link in manifest.links:
            target = os.path.join(place, link.path)
            if not (os.path.islink(target) and os.readlink(target) == link.target):
                _replace(target, partial(os.symlink, link.target))
        _set_modes(place, manifest)
        write_file(record, json.dumps(now).encode("ascii"))


def _in_the_way(place: str, manifest: Manifest, before: set[str]) -> str | None:
    """Return the reason why files that were not shipped would be lost, or None. They would be if a shipped folder has
    their name, or if they are in a folder that has to be deleted.
    """
    for entry in manifest.folders:
        target = os.path.join(place, entry.path)
        if os.path.lexists(target) and not _is_folder(target) and entry.path not in before:
            return f"{target} was not shipped, and now a folder of that name is"
    for path in manifest.paths[len(manifest.folders) :]:
        target = os.path.join(place, path)
        if _is_folder(target) and set(os.listdir(target)) - {_BYTECODE} and _is_in(place, path):
            return f"{target} holds files that were not shipped, and is no folder any more in what is shipped"
    return None


def _shipped_before(record: str) -> set[str]:
    """Return the paths in a record. It may have been forged, so paths that lead out of its folder are skipped."""
    with suppress(OSError, ValueError, TypeError), open(record, encoding="ascii") as file:
        found = [path for path in json.load(file) if isinstance(path, str)]
        return {path for path in found if not os.path.isabs(path) and ".." not in path.split("/") and "\0" not in path}
    return set()


def _is_in(place: str, path: str) -> bool:
    """Whether a path below a folder is really inside: one of its folders may have become a link to another place."""
    inner = os.path.realpath(os.path.join(place, os.path.dirname(path)))
    return f"{inner}/".startswith(f"{os.path.realpath(place).rstrip('/')}/")


def prune(shelf: str) -> None:
    """Delete the folders of jobs that are over, except for the newest ones.

    Hosts may share a home directory, and so the cache, but not its locks. So folders of other hosts are deleted only
    when they are old.
    """
    found = by_last_use(shelf)
    own = [path for _, path in found if _host_of(path) == socket.gethostname()]
    long_ago = time.time() - _KEPT_OF_OTHERS
    for path in [*own[_TREES_KEPT:], *(path for used, path in found if path not in own and used < long_ago)]:
        discard_unused(path)


def _host_of(place: str) -> str:
    """Return the name of the host that made a folder."""
    # 0123abcd-node-7-0-abcd
    return os.path.basename(place).partition("-")[2].rpartition("-")[0].rpartition("-")[0]


def _set_modes(place: str, manifest: Manifest) -> None:
    """Set the modes of folders, after they have been filled. Other bits, such as set-group-ID, stay."""
    for folder in reversed(manifest.folders):
        target = os.path.join(place, folder.path)
        mode = stat.S_IMODE(os.stat(target).st_mode)
        if mode & 0o777 != folder.mode | 0o700:
            os.chmod(target, (mode & ~0o777) | folder.mode | 0o700)


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Lock a folder against changes by other processes."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_folder(path: str) -> bool:
    """Whether `path` is a folder. A link to a folder is not."""
    return os.path.isdir(path) and not os.path.islink(path)


def _is_same(entry: FileEntry, target: str) -> bool:
    """Whether the file `target` has the size, time, mode and content of `entry`."""
    try:
        found = os.lstat(target)
        facts = (found.st_size, found.st_mtime_ns, found.st_mode)
        return facts == (entry.size, entry.mtime, entry.mode | 0o100000) and read_digest(target) == entry.digest
    except OSError:
        return False


def _replace(target: str, write: Callable[[str], None]) -> None:
    """Replace `target` atomically. A process that has the old file open keeps it."""
    half = os.path.join(os.path.dirname(target), f"{HALF}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        write(half)
        if _is_folder(target):
            _remove(target)
        os.rename(half, target)
    finally:
        with suppress(OSError):
            os.unlink(half)


def _remove(path: str) -> None:
    """Delete a file, a link, or a folder that is empty except for bytecode. Other folders stay."""
    with suppress(OSError):
        if _is_folder(path):
            if os.listdir(path) == [_BYTECODE]:
                shutil.rmtree(os.path.join(path, _BYTECODE))
            os.rmdir(path)
        else:
            os.unlink(path)
