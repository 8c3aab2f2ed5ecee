"""The temporary files of a process of an elastic job, which are to be gone even if it is killed."""

from __future__ import annotations

import os
from multiprocessing import process

from distrun.contract.elastic.variables import SCRATCH


def folder() -> str | None:
    """Return the folder for files of this process and its children, which the agent deletes when the process is gone;
    None: there is none."""
    given = os.environ.get(SCRATCH)
    return given if given and os.path.isdir(given) else None


def use() -> None:
    """Have `multiprocessing` keep its sockets there, such as those by which workers of a loader hand over tensors.

    It would make a folder for each process, and delete it when the process exits.
    """
    chosen = folder()
    if chosen is not None:
        # Where multiprocessing.util.get_temp_dir() looks first; children inherit it, however they are started.
        config = process.current_process()._config  # type: ignore[attr-defined]
        config.setdefault("tempdir", chosen)
