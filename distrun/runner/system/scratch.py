"""Folders for what processes of an elastic job would leave in the folder of temporary files if they were killed.

TMPDIR itself stays as it is: the ranks of a host exchange files there, and checkpoints may be there that are to outlive
them. The ranks use their folders by `contract.elastic.scratch`.
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
    """Make the folder of a process.

    Args:
        environ: its variables, with DISTRUN_JOB.
        number: its number in the job.

    Returns:
        The folder; None if none can be made.
    """
    for folder in _folders(environ):
        path = folder / f"{_prefix(environ)}{number}"
        with suppress(OSError):
            path.mkdir(mode=0o700)
            return str(path)
    return None


def remove(folder: str) -> None:
    """Delete the folder of a process of which nothing is left, as far as that is possible."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_all(environ: Mapping[str, str]) -> None:
    """Delete the folders of all processes of a job on a host, whose agent has died.

    Args:
        environ: the variables of its processes, with DISTRUN_JOB and DISTRUN_HOSTNAME; nothing is done without.
    """
    if "DISTRUN_JOB" in environ:
        for prefix in map(Path, prefixes(environ)):
            for path in prefix.parent.glob(f"{prefix.name}*"):
                remove(str(path))


def prefixes(environ: Mapping[str, str]) -> list[str]:
    """Return what the paths of these folders may begin with.

    Args:
        environ: see `remove_all`.
    """
    return [str(folder / _prefix(environ)) for folder in _folders(environ)]


def _folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """Return where temporary files go, as `tempfile` finds it in a process with these variables."""
    given = [environ.get(name) for name in _VARIABLES]
    for folder in (*given, tempfile.gettempdir()):
        if folder:
            yield Path(os.path.abspath(folder))


def _prefix(environ: Mapping[str, str]) -> str:
    """Return what the names of a job's folders begin with on one host; several may be one machine.

    It is short: Unix sockets are in the folder, whose paths have 107 bytes.
    """
    whose = f"{environ['DISTRUN_JOB']} {environ.get('DISTRUN_HOSTNAME', '')}"
    return f"dr-{hashlib.blake2s(whose.encode(), digest_size=4).hexdigest()}."
