"""Writing Horovod's timeline in the background: a thread of rank 0 empties the ring into the file.

The file is a JSON array of one event per line. Its end is missing while the job runs, as Chrome's format allows, so it
can be opened at any time, and after a crash.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from distrun.errors import UsageError
from distrun.tracing import recording
from distrun.tracing.horovod_timeline.entries import HorovodEntries
from distrun.tracing.reader import RingReader, events, split_names
from distrun.tracing.timeline.options import check_file

log = logging.getLogger("distrun")

_EVERY = 0.25
"""Seconds between two reads of the ring, which holds several seconds at least."""
_BEGIN, _SEPARATOR, _END = "[\n", ",\n", "\n]\n"


class HorovodTimeline:
    """Writes from its creation, or from the time when this process becomes rank 0, until `end`."""

    def __init__(self, file: str, mark_cycles: bool, library: str, is_first: Callable[[], bool]) -> None:
        """Begin the file if this is rank 0.

        Args:
            file: the file's name.
            mark_cycles, library: see `HorovodEntries`.
            is_first: returns whether this is rank 0 at present. Once it is, it stays rank 0 until it ends.

        Raises:
            UsageError: the file cannot be written.
        """
        assert recording.ring is not None
        self.file = os.path.abspath(file)
        self._ring = recording.ring
        self._mark_cycles = mark_cycles
        self._library = library
        self._is_first = is_first
        self._process = os.getpid()
        self._names = [""]
        self._entries: HorovodEntries | None = None  # for the file, once it has been created
        self._descriptor = -1
        self._size = 0
        self._reader = RingReader(self._ring.memory)
        self._begin = time.monotonic_ns()
        self._reader.read()  # skips earlier events
        if is_first():
            self._open()
        self._marked, self._ring.marks_cycles = self._ring.marks_cycles, self._ring.marks_cycles or mark_cycles
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="distrun timeline", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Write the remaining events, and complete the file."""
        if os.getpid() != self._process:
            return  # in a forked child: the file is the parent's
        self._ended.set()
        self._thread.join()
        self._ring.marks_cycles = self._marked

    def _work(self) -> None:
        try:
            while not self._ended.wait(_EVERY):
                self._drain()
            self._drain()
            self._complete()
        except (OSError, UsageError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            log.warning("the timeline %s ends here: %s", self.file, reason)
        finally:
            if self._entries is not None:
                os.close(self._descriptor)

    def _drain(self) -> None:
        now = time.monotonic_ns()
        self._names += split_names(self._reader.new_names())
        recorded = self._reader.read()
        if self._entries is None:
            if not self._is_first():
                self._begin = now
                return
            self._open()
        assert self._entries is not None
        self._write("".join(line + _SEPARATOR for line in self._entries.of(events(recorded), self._names)))

    def _open(self) -> None:
        check_file("", self.file)
        try:
            self._descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            self._write(_BEGIN)
        except OSError as error:
            raise UsageError(f"{self.file!r} cannot be written: {error.strerror}: give another file") from None
        self._entries = HorovodEntries(self._begin, self._library, self._mark_cycles)

    def _complete(self) -> None:
        """Write the end of the array over the last comma."""
        if self._entries is not None:
            if self._size > len(_BEGIN):
                os.lseek(self._descriptor, -len(_SEPARATOR), os.SEEK_CUR)
            self._write(_END)

    def _write(self, text: str) -> None:
        data = text.encode()
        self._size += len(data)
        while data:  # without Python's buffers, which a forked child would write a second time
            data = data[os.write(self._descriptor, data) :]
