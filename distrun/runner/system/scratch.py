"""Folders for files that processes of an elastic job would leave among the temporary files if they were killed.

TMPDIR itself is not changed: the ranks of a host exchange files there, and it may have checkpoints that must outlive
the ranks. Ranks use their folders through `contract.elastic.scratch`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

_VARIABLES = ("TMPDIR", "TEMP", "TMP")


def make(environ: Mapping[str, str], number: int) -> str | None:
    """Create the folder of a process, whose variables are `environ`. Return it, or None if it cannot be created."""
    for folder in _folders(environ):
        path = folder / f"{_prefix(environ)}{number}"
        with suppress(OSError):
            path.mkdir(mode=0o700)
            return str(path)
    return None


def remove_all(environ: Mapping[str, str]) -> None:
    """Delete the folders of all processes of a job on a host, whose agent has died.

    Args:
        environ: the variables of its processes, with DISTRUN_JOB and DISTRUN_HOSTNAME. Without the first, nothing is
            deleted.
    """
    if "DISTRUN_JOB" in environ:
        for prefix in map(Path, prefixes(environ)):
            for path in prefix.parent.glob(f"{prefix.name}*"):
                shutil.rmtree(path, ignore_errors=True)


def prefixes(environ: Mapping[str, str]) -> list[str]:
    """Return the possible prefixes of the paths of these folders. See `remove_all`."""
    return [str(folder / _prefix(environ)) for folder in _folders(environ)]


def _folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders for temporary files that `tempfile` may choose in a process with these variables."""
    given = [environ.get(name) for name in _VARIABLES]
    for folder in (*given, tempfile.gettempdir()):
        if folder:
            yield Path(os.path.abspath(folder))


def _prefix(environ: Mapping[str, str]) -> str:
    """Return the prefix of the names of a job's folders on one host, as several "hosts" may be one machine.

    It is short, as the folders hold Unix sockets, whose paths have at most 107 bytes.
    """
    whose = f"{environ['DISTRUN_JOB']} {environ.get('DISTRUN_HOSTNAME', '')}"
    return f"dr-{hashlib.blake2s(whose.encode(), digest_size=4).hexdigest()}."
