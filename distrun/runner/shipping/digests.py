"""A cache of the digests and sizes of files, so that unchanged files need not be read again.

A file counts as unchanged while its size, mtime, ctime and inode number are the same. Programs cannot set the ctime.
But a file that was written within the same clock tick as it was read may have changed unnoticed, so digests of files
that have just been written are not kept. The digests of a folder are deleted 30 days after its last shipment.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress

from distrun.runner.shipping.blobs import read_digest_and_size
from distrun.runner.shipping.cache import CacheError, open_cache, touch, write_file

_FRESH = 2_000_000_000  # nanoseconds after a change of a file while another change may go unnoticed
_KEPT = 30 * 86400.0  # seconds since the last shipment of a folder

Facts = tuple[int, ...]
Content = tuple[str, int]
"""The digest and the size of a content. The size is counted, as stat(2) reports another one, or 0, on /proc and some
FUSE file systems.
"""


class Digests:
    """The digests of the files of one folder."""

    def __init__(self, folder: str) -> None:
        """Read the stored digests of a folder. If the cache cannot be read, there are none."""
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
        """Return the digest of a file's content, and its size. `name` is its path below the folder. Raises OSError."""
        facts = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        known = self._remembered.get(name)
        content = known[1] if known is not None and known[0] == facts else read_digest_and_size(path)
        if max(facts[1], facts[2]) < time.time_ns() - _FRESH:
            self._now[name] = (facts, content)
        return content

    def save(self) -> None:
        """Store the digests that were asked for, as far as possible, and delete outdated ones of other folders."""
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
