"""A file in Chrome's trace event format that is complete at any moment, even if its writer is killed."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any

_HEAD = b'{"displayTimeUnit":"ms","traceEvents":[\n'
_GZIP = 16 + zlib.MAX_WBITS
_LEVEL = 6


class TraceFile:
    """A file that is written piece by piece. Each is followed by the end of the file, which the next one overwrites."""

    def __init__(self, path: str, end: dict[str, Any]) -> None:
        """Begin the file.

        Args:
            path: the file's name. The file is compressed if it ends in .gz.
            end: further fields of the file's object, after the events.

        Raises:
            OSError: the file cannot be written.
        """
        self.end = end
        self._file = open(path, "wb")  # noqa: SIM115  # until `close`
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP) if path.endswith(".gz") else None
        self._is_empty = True
        self.size = 0
        """The bytes written so far, not counting the end."""
        self._put(_HEAD)
        self._put_end()

    def write(self, entries: Iterable[str]) -> None:
        """Append events, each a JSON object as text."""
        text = ",\n".join(entries)
        if not text:
            return
        self._put((text if self._is_empty else ",\n" + text).encode())
        self._is_empty = False
        self._put_end()

    def close(self) -> None:
        """Write the present `end`, and close the file."""
        with self._file:
            self._put(b"")
            self._put_end()

    def _put(self, data: bytes) -> None:
        if self._compressor is not None:
            data = self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        self._file.seek(self.size)
        self._file.write(data)
        self.size += len(data)

    def _put_end(self) -> None:
        data = ("\n]," + json.dumps(self.end, separators=(",", ":"))[1:] + "\n").encode()
        if self._compressor is not None:
            finished = self._compressor.copy()  # a copy: the compressor itself must continue without this end
            data = finished.compress(data) + finished.flush()
        self._file.write(data)
        self._file.truncate()
        self._file.flush()
