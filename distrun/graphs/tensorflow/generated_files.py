"""The Python files that TensorFlow generates when it traces functions, which it deletes at the end of the process."""

from __future__ import annotations

import tempfile
import types
from contextlib import suppress
from functools import partial

from distrun.runtime.world import world


def keep_apart() -> None:
    """In an elastic job, make TensorFlow write them to a folder that the agent deletes if this process is killed."""
    if not world.is_elastic():
        return
    from distrun.contract.elastic import scratch

    folder = scratch.folder()
    if folder is None:
        return
    with suppress(ImportError):
        from tensorflow.python.autograph.pyct import loader

        module = types.ModuleType("tempfile")  # TensorFlow's loader has no argument for the folder
        module.__dict__.update(vars(tempfile), NamedTemporaryFile=partial(tempfile.NamedTemporaryFile, dir=folder))
        loader.tempfile = module
