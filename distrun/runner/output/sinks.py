"""The destinations of printed bytes: a descriptor, a text stream of Python, a file per rank."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol, TextIO

from distrun.errors import UsageError


class Sink(Protocol):
    """A destination of bytes."""

    @property
    def is_terminal(self) -> bool:
        """Whether it is a terminal, where people see unfinished lines and colours."""

    @property
    def identity(self) -> object:
        """A key that is equal for sinks whose output appears in the same place."""

    def write(self, data: bytes) -> None:
        """Write all data. Blocks while the reader does not read. Raises OSError if the reader is gone."""


class DescriptorSink:
    """A file descriptor, such as 1 or 2. Unlike `sys.stdout.buffer` it has no lock that a blocked writer could hold."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.is_terminal = os.isatty(descriptor)
        self.identity: object = descriptor
        with suppress(OSError):
            status = os.fstat(descriptor)
            self.identity = (status.st_dev, status.st_ino)

    def write(self, data: bytes) -> None:
        """Write all of the data, even if another process has made the descriptor non-blocking."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])


class TextSink:
    """A text stream that may not have a descriptor, such as `sys.stdout` in a notebook."""

    is_terminal = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.identity: object = id(stream)

    def write(self, data: bytes) -> None:
        """Write the data as text. Bytes that the stream cannot show become backslash escapes."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        text = data.decode(errors="backslashreplace")
        self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self._stream.flush()


def is_own(stream: TextIO) -> bool:
    """Whether a stream is the stdout or stderr that this process was started with, not what a notebook has instead."""
    return stream in (sys.__stdout__, sys.__stderr__)


class RankFiles:
    """The files DIR/rank.N/stdout and stderr: the complete output of each rank, byte for byte."""

    _MAX_OPEN = 256

    def __init__(
        self, directory: Path, size: int, ranks: Iterable[int], first_server: int | None = None, grows: bool = False
    ) -> None:
        """Create the directories and empty the files.

        Args:
            directory: DIR.
            size: the number of ranks of the job.
            ranks: the ranks that get files here.
            first_server: the number of the first process that is a parameter server. Its files are in server.0.
            grows: whether the job may get ranks beyond `size`.

        Raises:
            UsageError: the files cannot be created, or would mix with those of another job's ranks.
        """
        self.directory = directory
        self._width = len(str(size - 1))
        self._first_server = first_server
        self._open: dict[Path, BinaryIO] = {}
        ranks = list(ranks)
        own = {self.path(rank, "stdout").parent for rank in (*range(size), *ranks)}
        try:
            if strange := [] if grows else sorted({*directory.glob("rank.*"), *directory.glob("server.*")} - own):
                raise UsageError(
                    f"--output-dir {str(directory)!r} has the output of another job, which had a {strange[0].name} and "
                    "would mix with this one's: remove it, or give another directory"
                )
            for rank in ranks:
                self.path(rank, "stdout").parent.mkdir(parents=True, exist_ok=True)
                for stream in ("stdout", "stderr"):
                    self.path(rank, stream).write_bytes(b"")
        except OSError as error:
            raise UsageError(
                f"--output-dir {str(directory)!r} cannot be written: {error.strerror}; give a directory you may write"
            ) from None

    def path(self, rank: int, stream: str) -> Path:
        """Return the file of one stream of one rank."""
        if self._first_server is not None and rank >= self._first_server:
            return self.directory / f"server.{rank - self._first_server}" / stream
        return self.directory / f"rank.{rank:0{self._width}}" / stream

    def write(self, rank: int, stream: str, data: bytes) -> None:
        """Append to a file. Raises OSError, for example when the disk is full."""
        path = self.path(rank, stream)
        file = self._open.pop(path, None)
        if file is None:
            if len(self._open) >= self._MAX_OPEN:
                self._open.pop(next(iter(self._open))).close()
            path.parent.mkdir(exist_ok=True)  # for a rank that an elastic job has added
            file = path.open("ab", buffering=0)
        self._open[path] = file  # the most recently used comes last
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            file.close()
        self._open.clear()
