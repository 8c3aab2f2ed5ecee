"""Recording the timeline of this process: a thread empties its ring into a part, in the background."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

from distrun.errors import UsageError
from distrun.tracing import layout, recording
from distrun.tracing.activity import activity_in
from distrun.tracing.parts.merging import merge
from distrun.tracing.parts.part import Part, PartHeader, PartWriter, folder_of, inode, parts_in
from distrun.tracing.reader import RingReader
from distrun.tracing.timeline.epoch import monotonic_epoch
from distrun.tracing.timeline.options import TimelineOptions, check_file

log = logging.getLogger("distrun")

_EVERY = 0.25
"""Seconds between two reads of the ring, which holds several seconds at least."""
_TIMEOUT = 10.0
"""Seconds that the merging rank waits for the others to complete their parts."""
_STOP = "stop"
_SAME = ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/time")


class Recorder:
    """Records from its creation until `stop`."""

    def __init__(self, options: TimelineOptions, rank: int, host: str) -> None:
        """Begin to record.

        Args:
            options: the timeline.
            rank, host: the rank of this process, and its host.

        Raises:
            UsageError: the file cannot be written.
        """
        ring = recording.ring
        assert ring is not None
        check_file("", options.file)
        self.options = options
        self._process = os.getpid()
        self._rank = rank
        self._host = host
        self._folder = folder_of(options.file)
        self._reader = RingReader(ring.memory)
        self._reader.read()  # skips earlier events
        state = activity_in(RingReader(ring.memory)).state or layout.OTHER
        header = PartHeader(rank, host, _clock(), monotonic_epoch(), ring.generation, state)
        try:
            self._folder.mkdir(exist_ok=True)
            old = [path for path in parts_in(self._folder) if Part.is_over(path)]
            self._old = frozenset(map(inode, [*old, self._folder / _STOP]))
            self._part = PartWriter(self._folder, header)
        except OSError as error:
            raise UsageError(f"{options.file!r} cannot be written: {error.strerror}: give another file") from None
        self._inode = inode(self._part.path)
        self._ring = ring
        self._marked, ring.marks_cycles = ring.marks_cycles, ring.marks_cycles or options.mark_cycles
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="distrun timeline", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Complete this rank's part. The first of the ranks that record here then merges all parts."""
        if os.getpid() != self._process:
            return  # in a forked child: the part is the parent's
        self._ended.set()
        self._thread.join()
        self._ring.marks_cycles = self._marked
        if inode(self._part.path) != self._inode:
            return  # the merging rank did not wait for this part any longer
        others = [path for path in parts_in(self._folder) if path != self._part.path and inode(path) not in self._old]
        if any(path < self._part.path and not _is_dead(path) for path in others):
            return
        try:
            (self._folder / _STOP).unlink(missing_ok=True)
            (self._folder / _STOP).touch()
            deadline = time.monotonic() + _TIMEOUT
            while time.monotonic() < deadline and not all(map(Part.is_over, others)):
                time.sleep(0.02)
            ranks = merge(self._folder, self.options, self._old)
        except OSError as error:
            log.warning("the timeline %s could not be written: %s", self.options.file, error.strerror)
            return
        if self._rank:  # this rank may share no file system with rank 0, so that both have a timeline
            names = ", ".join(map(str, ranks))
            log.warning("%s on %s has the timeline of the ranks %s", self.options.file, self._host, names)

    def _work(self) -> None:
        stop = self._folder / _STOP
        while not self._ended.wait(_EVERY) and inode(stop) in {0, *self._old}:
            self._drain()
        self._drain()
        self._part.end()

    def _drain(self) -> None:
        names, records = self._reader.new_names(), self._reader.read()
        if names or records:
            try:
                self._part.write(names, records)
            except OSError as error:
                log.warning("the timeline %s ends here: %s", self.options.file, error.strerror)
                self._ended.set()


def _is_dead(path: Path) -> bool:
    """Whether a rank was gone before it completed its part, so that it will not merge the parts."""
    try:
        return Part.is_over(path) and not Part.is_complete(path)
    except FileNotFoundError:
        return False


def _clock() -> str:
    """Return a name for this machine's monotonic clock, which differs between machines."""
    found = []
    for path in _SAME:
        try:
            found.append(os.readlink(path) if "/ns/" in path else Path(path).read_text().strip())
        except OSError:
            found.append("")
    return " ".join(found)
