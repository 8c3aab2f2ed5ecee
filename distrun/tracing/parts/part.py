"""The part of one rank: a file of its events, beside the timeline that they will be in."""

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
    """The name of the host's clock: parts with the same one need no alignment."""
    epoch: int
    """Nanoseconds since 1970 at which that clock was 0, by the host's own time."""
    generation: int
    """The world that the rank was in at first."""
    state: int
    """The activity of its main thread at first, one of `layout.STATES`."""


def folder_of(file: str) -> Path:
    """Return the folder that holds the parts of a timeline."""
    path = Path(file)
    return path.with_name(f".{path.name}.parts")


class PartWriter:
    """Writes a part, which is locked meanwhile: so others know whether its rank lives."""

    def __init__(self, folder: Path, header: PartHeader) -> None:
        """Begin the part; raises OSError if it cannot be written."""
        self.path = folder / f"rank-{header.rank:06}"
        beginning = folder / f"new-{header.rank:06}-{os.getpid()}"
        self._file = beginning.open("xb")
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._file.write(json.dumps(asdict(header)).encode() + b"\n")
        self._file.flush()
        # Nobody sees it before it is locked, and takes it for that of a rank which is gone. It may replace an earlier
        # job's: a process that looks at that sees another inode now.
        beginning.replace(self.path)

    def write(self, names: bytes, records: bytes) -> None:
        """Add what a ring has given: new names and events."""
        data = zlib.compress(names + records, 1)
        self._file.write(_LENGTHS.pack(len(data), len(names)) + data)
        self._file.flush()

    def end(self) -> None:
        """Complete the part."""
        with self._file:
            self._file.write(_END)


class Part:
    """Reads a part, also one that is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            line = file.readline()
            self._begin = file.tell()
        self.header = PartHeader(**json.loads(line))

    def frames(self) -> Iterator[tuple[list[Event], list[str]]]:
        """Return the events, piece by piece, each with all names so far."""
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
        """Whether a part has its end."""
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < len(_END):
                return False
            file.seek(-len(_END), os.SEEK_END)
            return file.read() == _END

    @staticmethod
    def is_over(path: Path) -> bool:
        """Whether a part is complete, or its rank is gone. Not for one's own part: asking would end its lock."""
        if Part.is_complete(path):
            return True
        with path.open("rb+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            return True


def inode(path: Path) -> int:
    """Return the number of a file, by which it differs from earlier ones of its name; 0: there is none."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def parts_in(folder: Path) -> list[Path]:
    """Return the parts in a folder, by rank."""
    return sorted(folder.glob("rank-*"))
