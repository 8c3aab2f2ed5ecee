"""The files that pods lack, as one archive: distrun, packages that it needs, and the user's code.

An archive is cut into pieces, one for each ConfigMap, because `kubectl apply` records each object in an annotation,
which has at most 256 KiB. The first program in a pod joins the pieces, compares the digest, and unpacks the archive in
/tmp.

gzip, which every Python has, compresses distrun and its requirements to 1.1 MB. xz would reach 0.85 MB. Each job has
its own ConfigMaps, not shared by content, because deleting a job must not delete what another job's next pod needs.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distrun.errors import UsageError
from distrun.runner.shipping.arrived import Arrived
from distrun.runner.shipping.first_stage import counted
from distrun.runner.shipping.options import parse_ship
from distrun.runner.shipping.package import NEEDS, package_folder
from distrun.runner.shipping.requirements import requirements
from distrun.runner.shipping.snapshot import ShippedFolder, format_size, take, too_large

PIECES = "/mnt/distrun"
"""The folder in a pod with the pieces."""
ROOT = "/tmp/distrun"
"""The folder in a pod for the unpacked archive: `package`, `needs/<name>` and `trees/<number>`."""

_PIECE = 190_000  # bytes: less than 256 KiB in base64
_LIMIT = 4 << 20  # bytes of an archive: the cluster's database keeps it, and each node of the job reads it
_UNPACKED = 64 << 20  # bytes of a folder: compressing a larger one is not worth it
_NEEDS = (*NEEDS, "click")  # the command line of `distrun agent` needs click
_REQUIRED = ("click>=8.1", "cryptography>=3.4")  # needed in a pod's environment, besides what ranks need
_REMEDY = "put it into the image or on a volume"

_PROGRAM = """\
import hashlib, io, sys, tarfile
if sys.version_info < (3, 10):
    sys.exit("distrun: Python 3.10 or newer is needed, and the image has " + sys.version.split()[0])
data = b"".join(open("{pieces}/piece%d" % n, "rb").read() for n in range({count}))
if hashlib.sha256(data).hexdigest() != "{digest}":
    sys.exit("distrun: the ConfigMaps of this job are not those that it was made with: create all of it again")
tarfile.TarFile.extraction_filter = staticmethod(lambda member, place: member)
tarfile.open(fileobj=io.BytesIO(data)).extractall("{root}")
sys.path = ["{root}/package"] + [p for p in sys.path if p]
from distrun.tools.kubernetes.arrival import main
main(wdir={wdir!r}, requirements={requirements!r})
"""


@dataclass(frozen=True)
class Bundle:
    """The files and settings that a job brings into its pods."""

    archive: bytes
    """A compressed tar file."""
    trees: tuple[tuple[str, str], ...] = ()
    """The shipped folders: the path of each here, and in pods."""
    wdir: str | None = None
    """The working directory in pods. None = the image's."""
    requirements: tuple[str, ...] | None = None
    """The requirements of the environment that ranks run in. None = they run in the image's."""

    @property
    def digest(self) -> str:
        """The SHA-256 of the archive."""
        return hashlib.sha256(self.archive).hexdigest()

    @property
    def pieces(self) -> list[bytes]:
        """The archive in pieces."""
        return [self.archive[start : start + _PIECE] for start in range(0, len(self.archive), _PIECE)]

    def program(self) -> str:
        """Return the first program in a pod, for `python -c`. Its arguments are the arguments of `distrun`."""
        wanted = None if self.requirements is None else list(self.requirements)
        return _PROGRAM.format(
            pieces=PIECES,
            count=len(self.pieces),
            digest=self.digest,
            root=ROOT,
            wdir=self.wdir,
            requirements=wanted,
        )

    def here(self, path: str) -> str:
        """Return the path in pods of a file or folder here, or `path` itself if it is not shipped."""
        return Arrived("", (), self.trees).here(path)


def pack(ships: Sequence[str], bootstrap: str | None, wdir: str | None) -> Bundle:
    """Read the shipped folders, and return the bundle of a job.

    Args:
        ships: the values of `--ship`.
        bootstrap: the value of `--bootstrap`. None = it was not given.
        wdir: the working directory, here or in the image. None = the current one if it is shipped, else the first
            shipped folder.

    Raises:
        UsageError: a folder does not exist, cannot be read, or is too large.
    """
    snapshots = [_snapshot(value) for value in ships]
    trees = tuple((name, f"{ROOT}/trees/{number}") for number, taken in enumerate(snapshots) for name in taken.names)
    packed = io.BytesIO()
    compressed = gzip.GzipFile("", "wb", 9, packed, mtime=0)
    with compressed, tarfile.open(fileobj=compressed, mode="w") as file:
        _add_package(file, "distrun", "package")
        for name in _NEEDS if bootstrap is None else ():
            _add_package(file, name, f"needs/{name}")
        for number, taken in enumerate(snapshots):
            _add_tree(file, taken, f"trees/{number}", packed)
    wanted = None if bootstrap is None else _required(bootstrap)
    bundle = Bundle(packed.getvalue(), trees, requirements=wanted)
    present = os.getcwd()
    place: str | None = bundle.here(wdir or present)
    if wdir is None and place == present:
        place = trees[0][1] if trees else None
    return replace(bundle, wdir=place)


def _required(bootstrap: str) -> tuple[str, ...]:
    wanted = requirements(bootstrap)
    return wanted if any("--hash" in line for line in wanted) else (*wanted, *_REQUIRED)


def _snapshot(value: str) -> ShippedFolder:
    folder, to = parse_ship(value)
    if to:
        raise UsageError(
            f"--ship {value!r} names a folder on hosts that is kept, and pods keep nothing: give --ship {folder}"
        )
    return take(folder, "", _UNPACKED, remedy=_REMEDY)


def _add_package(file: tarfile.TarFile, name: str, folder: str) -> None:
    """Add a package as it is installed here. If it is not, the image may still have it."""
    found = package_folder(name)
    for entry, path in counted(found) if found else ():
        _add(file, f"{folder}/{name}/{entry}", Path(path).read_bytes())


def _add_tree(file: tarfile.TarFile, taken: ShippedFolder, folder: str, packed: io.BytesIO) -> None:
    """Add a shipped folder to the archive. `packed` is the archive's compressed output so far."""
    _add(file, folder, kind=tarfile.DIRTYPE, mode=0o755)
    for inner in taken.manifest.folders:
        _add(file, f"{folder}/{inner.path}", kind=tarfile.DIRTYPE, mode=inner.mode | 0o700)
    for entry in taken.manifest.files:
        path = os.path.join(taken.folder, entry.path)
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"--ship {taken.folder}: {path} cannot be read: {error.strerror}; try again") from None
        if hashlib.sha256(data).hexdigest() != entry.digest:
            raise UsageError(
                f"--ship {taken.folder}: {path} changes while it is read; start again when nothing writes to it, or "
                "let .gitignore leave it out"
            )
        _add(file, f"{folder}/{entry.path}", data, mode=entry.mode, mtime=entry.mtime // 10**9)
        if packed.tell() > _LIMIT:
            sizes = [(item.path, item.size) for item in taken.manifest.files]
            allowed = f"{format_size(_LIMIT)}, compressed and with distrun"
            raise too_large(taken.folder, sizes, allowed, _REMEDY)
    for link in taken.manifest.links:
        _add(file, f"{folder}/{link.path}", kind=tarfile.SYMTYPE, target=link.target)


def _add(
    file: tarfile.TarFile,
    name: str,
    data: bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    mode: int = 0o644,
    mtime: int = 0,
    target: str = "",
) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type, entry.mode, entry.mtime, entry.linkname = len(data), kind, mode, mtime, target
    file.addfile(entry, io.BytesIO(data))
