"""The state of a folder as data: its files with digests of their contents, its links, and its folders."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class FileEntry:
    """A regular file."""

    path: str
    """Its path below the folder. Bytes that are not UTF-8 are surrogates."""
    mode: int
    """Its permissions, without set-user-ID and the like."""
    mtime: int
    """The time of its last modification, in nanoseconds since 1970."""
    size: int
    digest: str
    """The SHA-256 of its content."""


@dataclass(frozen=True)
class LinkEntry:
    """A symbolic link, which may be broken."""

    path: str
    target: str


@dataclass(frozen=True)
class FolderEntry:
    """A folder. Each comes after the folder that it is in."""

    path: str
    mode: int


@dataclass(frozen=True)
class Manifest:
    """All entries of a shipped folder."""

    files: tuple[FileEntry, ...]
    links: tuple[LinkEntry, ...]
    folders: tuple[FolderEntry, ...]

    @property
    def size(self) -> int:
        """The sum of the sizes of all files."""
        return sum(entry.size for entry in self.files)

    @property
    def paths(self) -> list[str]:
        """The paths of all entries: folders, files, links."""
        folders, files = [entry.path for entry in self.folders], [entry.path for entry in self.files]
        return [*folders, *files, *(entry.path for entry in self.links)]

    def to_json(self) -> bytes:
        """Return the manifest as JSON."""
        kinds = (self.files, self.links, self.folders)
        return json.dumps([[list(vars(item).values()) for item in kind] for kind in kinds]).encode("ascii")

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Return the manifest that `to_json` wrote."""
        files, links, folders = json.loads(text)
        return cls(
            tuple(FileEntry(*item) for item in files),
            tuple(LinkEntry(*item) for item in links),
            tuple(FolderEntry(*item) for item in folders),
        )
