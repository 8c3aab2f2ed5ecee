"""The part of one rank: a file with its events, next to the timeline that they will be merged into."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from distrun.tracing.reader import Event, events, split_names

_LENGTHS = struct.Struct("<II")
_END = _LENGTHS.pack(0, 0)


@dataclass(frozen=True)
class PartHeader:
    """The first line of a part."""

    rank: int
    host: str
    clock: str
    """The name of the host's clock. Parts with the same clock need no alignment."""
    epoch: int
    """The time since 1970, in nanoseconds, when that clock was 0, according to the host."""
    generation: int
    """The world that the rank was in at the beginning."""
    state: int
    """The state of its main thread at the beginning, one of `layout.STATES`."""


def folder_of(file: str) -> Path:
    """Return the folder for the parts of a timeline."""
    path = Path(file)
    return path.with_name(f".{path.name}.parts")


class PartWriter:
    """Writes a part, and keeps it locked while it is open, so other processes know whether its rank is alive."""

    def __init__(self, folder: Path, header: PartHeader) -> None:
        """Begin the part. Raises OSError if it cannot be written."""
        self.path = folder / f"rank-{header.rank:06}"
        beginning = folder / f"new-{header.rank:06}-{os.getpid()}"
        self._file = beginning.open("xb")
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._file.write(json.dumps(asdict(header)).encode() + b"\n")
        self._file.flush()
        # It gets its final name only when it is locked, so no process takes it for the part of a dead rank. It may
        # replace an earlier job's part. A process that looks at that one recognises the new part by its inode.
        beginning.replace(self.path)

    def write(self, names: bytes, records: bytes) -> None:
        """Append new names and events from a ring."""
        data = zlib.compress(names + records, 1)
        self._file.write(_LENGTHS.pack(len(data), len(names)) + data)
        self._file.flush()

    def end(self) -> None:
        """Complete the part."""
        with self._file:
            self._file.write(_END)


class Part:
    """Reads a part, which may still be in the process of being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            line = file.readline()
            self._begin = file.tell()
        self.header = PartHeader(**json.loads(line))

    def frames(self) -> Iterator[tuple[list[Event], list[str]]]:
        """Yield the events, piece by piece, each with all names so far."""
        names = [""]
        with self.path.open("rb") as file:
            file.seek(self._begin)
            while len(lengths := file.read(_LENGTHS.size)) == _LENGTHS.size:
                length, names_length = _LENGTHS.unpack(lengths)
                data = file.read(length)
                if not length or len(data) < length:
                    return
                raw = zlib.decompress(data)
                names += split_names(raw[:names_length])
                yield list(events(raw[names_length:])), names

    @staticmethod
    def is_complete(path: Path) -> bool:
        """Whether a part has its end mark."""
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < len(_END):
                return False
            file.seek(-len(_END), os.SEEK_END)
            return file.read() == _END

    @staticmethod
    def is_over(path: Path) -> bool:
        """Whether a part is complete, or its rank is gone. Not for the process's own part: this would drop its lock."""
        # POSIX locks belong to the process: closing any descriptor of the file releases them.
        if Part.is_complete(path):
            return True
        with path.open("rb+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            return True


def inode(path: Path) -> int:
    """Return the inode of a file, which differs from earlier files of the same name. 0: there is no such file."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def parts_in(folder: Path) -> list[Path]:
    """Return the parts in a folder, by rank."""
    return sorted(folder.glob("rank-*"))
