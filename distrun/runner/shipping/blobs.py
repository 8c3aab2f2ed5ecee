"""The contents of files in a cache, by their digests."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

from distrun.runner.shipping.cache import HALF, clear_half_written, naming, touch, write_file
from distrun.runner.shipping.manifest import FileEntry

_KEPT = 30 * 86400.0  # seconds since the last use of a content
_PER_USE = 86400.0  # seconds between two updates of the time of the last use
_PIECE = 1 << 20


class Blobs:
    """The contents of files in a host's cache, by their digests."""

    def __init__(self, cache: str) -> None:
        """Args: `cache` is the path of the cache."""
        self._shelf = os.path.join(cache, "blobs")
        os.makedirs(self._shelf, mode=0o700, exist_ok=True)

    def lacking(self, files: Iterable[FileEntry]) -> list[FileEntry]:
        """Return the files whose contents are missing, each content once."""
        wanted = {entry.digest: entry for entry in files if entry.size}
        return [entry for entry in wanted.values() if not os.path.exists(self.path(entry))]

    def store(self, entry: FileEntry, pieces: Iterable[bytes]) -> None:
        """Store a file's content. Its digest is checked when it is used. Raises OSError."""
        half = os.path.join(self._shelf, f"{HALF}{os.getpid()}-{secrets.token_hex(4)}")
        try:
            with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.writelines(pieces)
            os.makedirs(os.path.dirname(self.path(entry)), mode=0o700, exist_ok=True)
            os.rename(half, self.path(entry))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(half)

    def path(self, entry: FileEntry) -> str:
        """Return the path of a file's content, whether it exists or not."""
        return os.path.join(self._shelf, entry.digest[:2], entry.digest)

    def is_intact(self, entry: FileEntry) -> bool:
        """Whether a file's content is stored undamaged. If so, this counts as a use."""
        try:
            is_same = read_digest(self.path(entry)) == entry.digest
        except OSError:
            return False
        touch(self.path(entry))
        return is_same

    def copy(self, entry: FileEntry, target: str) -> bool:
        """Write a file with its content, mode and time, or return False if the stored content was damaged and is now
        deleted.

        It is a copy and not a link, so that a rank that writes to the file does not change it for later jobs.

        Raises:
            OSError: it cannot be written.
        """
        found = hashlib.sha256()
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with naming(target), open(descriptor, "wb", buffering=0) as file:
            if entry.size:
                for piece in self._pieces(entry):
                    found.update(piece)
                    file.write(piece)
                if found.hexdigest() != entry.digest:
                    os.unlink(target)
                    with suppress(FileNotFoundError):
                        os.unlink(self.path(entry))
                    return False
            os.fchmod(file.fileno(), entry.mode)
        os.utime(target, ns=(entry.mtime, entry.mtime))
        return True

    def _pieces(self, entry: FileEntry) -> Iterator[bytes]:
        """Yield a content as far as it can be read. If the rest is missing, its digest will be wrong."""
        path = self.path(entry)
        with suppress(OSError), open(path, "rb", buffering=0) as blob:
            if time.time() - os.fstat(blob.fileno()).st_mtime > _PER_USE:
                touch(path)
            while piece := blob.read(_PIECE):
                yield piece

    def prune(self) -> None:
        """Delete contents that have not been used for long, at most once a day."""
        mark = os.path.join(self._shelf, ".pruned")
        now = time.time()
        with suppress(OSError):
            if now - os.stat(mark).st_mtime < 86400:
                return
        with suppress(OSError):
            clear_half_written(self._shelf)
            write_file(mark, b"")
            for folder in os.scandir(self._shelf):
                for entry in os.scandir(folder.path) if folder.is_dir() else ():
                    if now - entry.stat().st_mtime > _KEPT:
                        os.unlink(entry.path)


def read_digest(path: str) -> str:
    """Return the SHA-256 of a file's content. Raises OSError."""
    return read_digest_and_size(path)[0]


def read_digest_and_size(path: str) -> tuple[str, int]:
    """Return the SHA-256 and the size of a file's content. Raises OSError."""
    found = hashlib.sha256()
    size = 0
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            found.update(piece)
            size += len(piece)
    return found.hexdigest(), size
