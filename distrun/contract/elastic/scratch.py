"""The temporary files of a process of an elastic job, which are deleted even if it is killed."""

from __future__ import annotations

import os
from multiprocessing import process

from distrun.contract.elastic.variables import SCRATCH


def folder() -> str | None:
    """Return the folder for files of this process and its children. None: there is none.

    The agent deletes it when the process is gone.
    """
    given = os.environ.get(SCRATCH)
    return given if given and os.path.isdir(given) else None


def use() -> None:
    """Make `multiprocessing` keep its sockets in the scratch folder, such as the ones that pass tensors from loaders.

    By default it makes a folder for each process and deletes it at exit, which does not happen in a killed process.
    """
    chosen = folder()
    if chosen is not None:
        # multiprocessing.util.get_temp_dir() looks here first. Children inherit it with every start method.
        config = process.current_process()._config  # type: ignore[attr-defined]
        config.setdefault("tempdir", chosen)
