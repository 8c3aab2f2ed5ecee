"""The digests and sizes of files that have been read before, so that unchanged files need not be read again.

A file counts as unchanged while its size, both its times and its inode are the same. The time at which the inode
changed cannot be set by programs; but a file that was written within the same tick as it was read may have changed
unseen, so digests of files that have just been written are not kept. The digests of a folder that is shipped no more
are deleted some time later.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress

from distrun.runner.shipping.blobs import read_digest_and_size
from distrun.runner.shipping.cache import CacheError, open_cache, touch, write_file

_FRESH = 2_000_000_000  # nanoseconds since its last change in which a file may change once more unseen
_KEPT = 30 * 86400.0  # seconds since a folder was shipped last

Facts = tuple[int, ...]
Content = tuple[str, int]
"""The digest of a content, and its bytes: file systems such as /proc and some of FUSE say others, or 0."""


class Digests:
    """The digests of the files of one folder."""

    def __init__(self, folder: str) -> None:
        """Read what is remembered of a folder. Without a cache to read from nothing is."""
        self._remembered: dict[str, tuple[Facts, Content]] = {}
        self._now: dict[str, tuple[Facts, Content]] = {}
        self._file: str | None = None
        with suppress(OSError, CacheError, ValueError, TypeError, AttributeError):
            shelf = os.path.join(open_cache(os.environ), "digests")
            os.makedirs(shelf, mode=0o700, exist_ok=True)
            self._file = os.path.join(shelf, hashlib.sha256(os.fsencode(folder)).hexdigest())
            with open(self._file, encoding="ascii") as file:
                found = json.load(file)
            self._remembered = {
                path: (tuple(facts), (str(digest), int(size))) for path, (facts, (digest, size)) in found.items()
            }

    def of(self, name: str, path: str, found: os.stat_result) -> Content:
        """Return the digest of a file's content, and its size.

        Args:
            name: its path below the folder.
            path: its path.
            found: what the file system says of it.

        Raises:
            OSError: it cannot be read.
        """
        facts = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        known = self._remembered.get(name)
        content = known[1] if known is not None and known[0] == facts else read_digest_and_size(path)
        if max(facts[1], facts[2]) < time.time_ns() - _FRESH:
            self._now[name] = (facts, content)
        return content

    def save(self) -> None:
        """Remember the digests asked for, as far as that is possible, and forget those of folders of long ago."""
        if self._file is None:
            return
        with suppress(OSError):
            if self._now == self._remembered:
                touch(self._file)
            else:
                write_file(self._file, json.dumps(self._now).encode("ascii"))
            for entry in os.scandir(os.path.dirname(self._file)):
                if time.time() - entry.stat().st_mtime > _KEPT:
                    os.unlink(entry.path)
