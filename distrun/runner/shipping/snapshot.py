"""The state of a user's folder at the start of a launch, and its contents for hosts that lack them."""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from distrun.errors import UsageError
from distrun.runner.protocol.handshake import HostError
from distrun.runner.shipping import ignore
from distrun.runner.shipping.blobs import Blobs, read_digest
from distrun.runner.shipping.cache import CacheError, explain, open_cache
from distrun.runner.shipping.digests import Digests
from distrun.runner.shipping.manifest import FileEntry, FolderEntry, LinkEntry, Manifest

_ATTEMPTS = 3  # to read a file that is being written
_PIECE = 1 << 20
_LARGEST = 3  # files that are named if the folder is too large


@dataclass(frozen=True)
class ShippedFolder:
    """A shipped folder."""

    folder: str
    """Its absolute path on this machine."""
    names: tuple[str, ...]
    """All its absolute paths: `folder`, and paths through links that the user may use for it."""
    to: str
    """The folder on hosts. Empty = a new folder per job."""
    manifest: Manifest
    packed: bytes
    """The compressed manifest, as sent to hosts."""
    kept: Blobs | None = None
    """The cache with all contents, for hosts that join later. None = contents are read from the folder."""

    @property
    def digest(self) -> str:
        """The SHA-256 of `packed`."""
        return hashlib.sha256(self.packed).hexdigest()

    def contents(self, digests: Sequence[str]) -> Iterator[bytes]:
        """Yield the contents with these digests, one after the other, in pieces.

        Raises:
            HostError: a file has changed since the start of the launch.
        """
        by_digest: dict[str, list[FileEntry]] = {}
        for entry in self.manifest.files:
            by_digest.setdefault(entry.digest, []).append(entry)
        gathered = bytearray()
        for digest in digests:
            for piece in self._content(self._unchanged(by_digest[digest])):
                gathered += piece
                if len(gathered) >= _PIECE:
                    yield bytes(gathered)
                    gathered.clear()
        if gathered:
            yield bytes(gathered)

    def _unchanged(self, equal: list[FileEntry]) -> FileEntry:
        """Return one of several equal files that is unchanged, or any if all have changed."""
        for entry in equal if self.kept is None else ():
            with suppress(OSError):
                if len(equal) > 1 and read_digest(os.path.join(self.folder, entry.path)) == entry.digest:
                    return entry
        return equal[-1]

    def _content(self, entry: FileEntry) -> Iterator[bytes]:
        found = hashlib.sha256()
        left = entry.size
        path = os.path.join(self.folder, entry.path) if self.kept is None else self.kept.path(entry)
        try:
            with open(path, "rb", buffering=0) as file:
                while left and (piece := file.read(min(left, _PIECE))):
                    found.update(piece)
                    left -= len(piece)
                    yield piece
        except OSError:
            left = -1
        if left or found.hexdigest() != entry.digest:
            raise HostError(
                f"{path} has changed since the launch began, and was not sent yet; "
                "start again when nothing writes to it, or let .gitignore leave it out"
            )


def keep(taken: ShippedFolder) -> ShippedFolder:
    """Return a snapshot with all contents stored in this machine's cache, so that later changes of the folder do not
    matter.

    Raises:
        UsageError: a file has changed meanwhile, or the cache cannot be written.
    """
    try:
        cache = open_cache(os.environ)
        blobs = Blobs(cache)
        for entry in taken.manifest.files:
            if entry.size and not blobs.is_intact(entry):
                blobs.store(entry, taken.contents([entry.digest]))
        blobs.prune()
    except OSError as error:
        raise UsageError(
            f"--ship {taken.folder} cannot be kept for hosts that come later: {explain(error, cache)}"
        ) from None
    except (CacheError, HostError) as error:
        raise UsageError(f"--ship {taken.folder} cannot be kept for hosts that come later: {error}") from None
    return replace(taken, kept=blobs)


def take(folder: str, to: str, limit: int, *, remedy: str = "raise the limit, as in --ship-limit 2G") -> ShippedFolder:
    """Return the current state of a folder. Files that .gitignore leaves out are not read.

    Args:
        folder: its path.
        to: the folder on hosts. Empty = a new folder per job.
        limit: its largest size in bytes.
        remedy: the remedy if it is larger, besides .gitignore.

    Raises:
        UsageError: a file cannot be read or keeps changing, or the folder is too large.
    """
    names = _names(folder)
    folder = names[0]
    rules, prefix = ignore.rules_around(folder, os.environ)
    walk = _Walk(names, prefix)
    try:
        walk.enter("", rules)
    except RecursionError:
        raise UsageError(f"--ship {folder} has folders in folders without end; let .gitignore leave them out") from None
    _check_limit(folder, [(path, found.st_size) for path, found in walk.found], limit, remedy)  # before reading
    digests = Digests(folder)
    files = tuple(_entry(folder, path, found, digests) for path, found in walk.found)
    _check_limit(folder, [(entry.path, entry.size) for entry in files], limit, remedy)
    digests.save()
    manifest = Manifest(files, tuple(walk.links), tuple(walk.folders))
    return ShippedFolder(folder, names, to, manifest, zlib.compress(manifest.to_json(), 1))


def _names(folder: str) -> tuple[str, ...]:
    """Return the absolute paths of a folder: resolved, as given, and based on the shell's $PWD."""
    names = [os.path.realpath(folder), os.path.abspath(folder)]
    present = os.environ.get("PWD", "")
    with suppress(OSError):
        if os.path.isabs(present) and os.path.samefile(present, os.curdir):
            names.append(os.path.normpath(os.path.join(present, folder)))
    return tuple(dict.fromkeys(name for name in names if os.path.realpath(name) == names[0]))


class _Walk:
    """A walk over the entries of a folder that are not ignored."""

    def __init__(self, names: tuple[str, ...], prefix: str) -> None:
        self._names = names
        self._folder = names[0]
        self._prefix = prefix
        self.found: list[tuple[str, os.stat_result]] = []
        self.links: list[LinkEntry] = []
        self.folders: list[FolderEntry] = []

    def enter(self, below: str, rules: ignore.Rules) -> None:
        """Collect the entries of a folder. `below` is its path relative to the top, with `/` at its end."""
        place = os.path.join(self._folder, below)
        try:
            with os.scandir(place) as scanned:
                entries = sorted(scanned, key=lambda item: item.name)
            if below and any(entry.name == ".git" for entry in entries):
                rules = rules.within(self._prefix + below, ignore.exclude(place))
            if any(entry.name == ignore.FILE and entry.is_file() for entry in entries):
                rules = rules.within(self._prefix + below, ignore.read(os.path.join(place, ignore.FILE)))
            for entry in entries:
                self._take(entry, below + entry.name, rules)
        except OSError as error:
            raise UsageError(
                f"--ship {self._folder}: {error.filename or place} cannot be read: {error.strerror}; give the right to "
                "read it, or let .gitignore leave it out"
            ) from None

    def _take(self, entry: os.DirEntry[str], path: str, rules: ignore.Rules) -> None:
        is_folder = entry.is_dir(follow_symlinks=False)
        if rules.ignore(self._prefix + path, is_folder):
            return
        if entry.is_symlink():
            self.links.append(LinkEntry(path, self._target(entry.path, path)))
        elif is_folder:
            if not os.path.exists(os.path.join(entry.path, "pyvenv.cfg")):  # a virtual environment cannot be moved
                self.folders.append(FolderEntry(path, stat.S_IMODE(entry.stat().st_mode) & 0o777))
                self.enter(f"{path}/", rules)
        elif entry.is_file():  # not a socket, a device or the like
            self.found.append((path, entry.stat(follow_symlinks=False)))

    def _target(self, link: str, path: str) -> str:
        """Return the target of a link. An absolute target inside the shipped folder becomes relative."""
        target = os.readlink(link)
        for name in self._names:
            if target == name or target.startswith(f"{name}/"):
                return os.path.relpath(target, os.path.dirname(os.path.join(name, path)))
        return target


def _entry(folder: str, path: str, found: os.stat_result, digests: Digests) -> FileEntry:
    whole = os.path.join(folder, path)
    try:
        for _ in range(_ATTEMPTS):
            digest, size = digests.of(path, whole, found)
            after = os.lstat(whole)
            if (after.st_size, after.st_mtime_ns, after.st_ino) == (found.st_size, found.st_mtime_ns, found.st_ino):
                return FileEntry(path, stat.S_IMODE(found.st_mode) & 0o777, found.st_mtime_ns, size, digest)
            found = after
    except OSError as error:
        raise UsageError(
            f"--ship {folder}: {whole} cannot be read: {error.strerror}; give the right to read it, or let .gitignore "
            "leave it out"
        ) from None
    raise UsageError(
        f"--ship {folder}: {whole} changes while it is read; start again when nothing writes to it, or let .gitignore "
        "leave it out"
    )


def _check_limit(folder: str, sizes: Sequence[tuple[str, int]], limit: int, remedy: str) -> None:
    if sum(size for _, size in sizes) > limit:
        raise too_large(folder, sizes, format_size(limit), remedy)


def too_large(folder: str, sizes: Sequence[tuple[str, int]], allowed: str, remedy: str) -> UsageError:
    """Return the error about a folder with files of these sizes in bytes. `remedy` is the one besides .gitignore."""
    largest = sorted(sizes, key=lambda item: -item[1])[:_LARGEST]
    named = ", ".join(f"{path} ({format_size(size)})" for path, size in largest)
    return UsageError(
        f"--ship {folder} has {format_size(sum(size for _, size in sizes))}, and allowed are {allowed}; its largest "
        f"files are {named}: let .gitignore leave out what is no code, or {remedy}"
    )


def format_size(size: float) -> str:
    """Return a number of bytes as text: `1.5 MiB`."""
    unit = "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if size >= 1024:
            size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
