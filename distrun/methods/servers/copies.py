"""Copies of a server's shares, in a folder that all hosts see: after the loss of its host, a server continues
elsewhere.

There is a file for each optimizer, which is replaced atomically, and whose digest is checked when it is read. Its name
has the *generation* of the server: the number of restarts of servers before this one was started on its host. A server
only writes files of its own generation, and reads the newest of earlier generations. So a server that was given up, but
still runs behind a partitioned network, cannot overwrite newer copies.

A copy is older than what workers have seen, so each worker tells the new server how many of its steps were applied.
Steps that are missing in the copy would otherwise be waited for, for ever if their worker has no more to push.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distrun.errors import BootstrapError
from distrun.methods.servers.clocks import LEFT

_MAGIC = b"distrun server copy 1\n"
# server-1.optimizer-0.2   server-1.optimizer-0.2.left   server-1.optimizer-0.2.part
_NAME = re.compile(
    r"server-(?P<server>\d+)\.optimizer-(?P<optimizer>\d+)\.(?P<generation>\d+)(?P<kind>(?:\.left)?(?:\.part)?)"
)


@dataclass(frozen=True)
class Copy:
    """The state of a share between two updates."""

    description: bytes
    """The layout, as JSON."""
    version: int
    clocks: Sequence[int]
    steps: NDArray[np.int64]
    arrays: NDArray[np.float32]


class Copies:
    """The files of one server. Several threads call its methods."""

    def __init__(self, folder: Path, server: int, generation: int) -> None:
        """Use the folder of the job, which is created if necessary. See above for the generation.

        Raises:
            BootstrapError: the folder cannot be written to.
        """
        self._folder, self._server, self._generation = folder, server, generation
        self._lock = threading.Lock()
        self._is_over = False
        self._saved: dict[int, tuple[int, list[int]]] = {}
        self._told = ""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"server-{server}.test").touch()
            (folder / f"server-{server}.test").unlink()
        except OSError as error:
            raise BootstrapError(
                f"{folder.parent} cannot be written to: {error.strerror}; --server-checkpoint needs a folder that all "
                "hosts see"
            ) from None

    def save(self, optimizer: int, copy: Copy) -> None:
        """Replace the copy of an optimizer's share. An error is reported on stderr, once."""
        with self._lock:
            if self._is_over:
                return
            try:
                _write(self._path(optimizer), _header(copy), copy.arrays)
                self._saved[optimizer] = copy.version, list(copy.clocks)
                for match, path in self._found():
                    if int(match["optimizer"]) == optimizer and int(match["generation"]) < self._generation:
                        path.unlink(missing_ok=True)
            except OSError as error:
                self._tell(error)

    def save_left(self, optimizer: int, workers: Sequence[int]) -> None:
        """Save, beside the copy, which workers have left, because these will not connect again to report it."""
        with self._lock:
            if not self._is_over:
                path = self._path(optimizer)
                try:
                    header = json.dumps(list(workers)).encode("ascii")
                    _write(path.with_name(path.name + ".left"), header, np.empty(0, np.float32))
                except OSError as error:
                    self._tell(error)

    def is_newest(self, optimizer: int, version: int, clocks: list[int]) -> bool:
        """Return whether the last copy has the same number of updates and the same clocks as the share."""
        return self._saved.get(optimizer) == (version, clocks)

    def newest(self) -> dict[int, tuple[Copy, float]]:
        """Return the newest copies of earlier generations, by optimizer, and the age of each in seconds.

        Raises:
            BootstrapError: a copy is damaged.
        """
        latest: dict[int, tuple[int, Path]] = {}
        for match, path in self._found():
            optimizer, generation = int(match["optimizer"]), int(match["generation"])
            if generation < self._generation and not match["kind"]:
                latest[optimizer] = max(latest.get(optimizer, (-1, path)), (generation, path))
        # The age is measured by the clock of the file server, not of this host.
        now = self._now() if latest else 0.0
        return {
            optimizer: (_copy(path), max(0.0, now - path.stat().st_mtime)) for optimizer, (_, path) in latest.items()
        }

    def remove(self) -> None:
        """Remove the files of this server, and write no more. The last server removes the folder."""
        with self._lock, suppress(OSError):
            self._is_over = True
            for match, path in self._found():
                if int(match["generation"]) <= self._generation:
                    path.unlink(missing_ok=True)
            self._folder.rmdir()

    def _path(self, optimizer: int) -> Path:
        return self._folder / f"server-{self._server}.optimizer-{optimizer}.{self._generation}"

    def _tell(self, error: OSError) -> None:
        if self._told != str(error):
            print(f"distrun: no copy of server {self._server} was made: {error}", file=sys.stderr, flush=True)
        self._told = str(error)

    def _found(self) -> list[tuple[re.Match[str], Path]]:
        """Return the files of this server, with the matches of their names."""
        matches = [(_NAME.fullmatch(path.name), path) for path in self._folder.iterdir()]
        return [(match, path) for match, path in matches if match is not None and int(match["server"]) == self._server]

    def _now(self) -> float:
        clock = self._folder / f"server-{self._server}.clock"
        clock.touch()
        try:
            return clock.stat().st_mtime
        except OSError:
            return time.time()
        finally:
            clock.unlink(missing_ok=True)


def _header(copy: Copy) -> bytes:
    values = {
        "version": copy.version,
        "clocks": list(copy.clocks),
        "steps": copy.steps.tolist(),
        "shape": copy.arrays.shape,
        "description": copy.description.decode("ascii"),
    }
    return json.dumps(values).encode("ascii")


def _copy(path: Path) -> Copy:
    text, values = _read(path)
    header = json.loads(text)
    clocks = list(header["clocks"])
    left = path.with_name(path.name + ".left")
    for worker in json.loads(_read(left)[0]) if left.exists() else ():
        clocks[worker] = LEFT
    arrays = np.frombuffer(values, np.float32).reshape(header["shape"])
    steps = np.array(header["steps"], np.int64)
    return Copy(header["description"].encode("ascii"), header["version"], clocks, steps, arrays)


def _write(path: Path, header: bytes, arrays: NDArray[np.float32]) -> None:
    """Replace the file `path` atomically."""
    values = np.ascontiguousarray(arrays).reshape(-1).view(np.uint8).data
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        file.write(_MAGIC + _digest(header, values) + b"\n" + header + b"\n")
        file.write(values)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _read(path: Path) -> tuple[bytes, bytes]:
    """Return the header and the values of the file `path`."""
    with path.open("rb") as file:
        magic, digest, header = file.readline(), file.readline(), file.readline()
        values = file.read()
    if magic != _MAGIC or _digest(header[:-1], values) != digest[:-1]:
        raise BootstrapError(f"{path} is damaged: start the job again from a checkpoint of the script's own")
    return header[:-1], values


def _digest(header: bytes, values: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(header, digest_size=16)
    digest.update(values)
    return digest.hexdigest().encode("ascii")
