"""Data-parallel training from one command: `distrun -np 2 python train.py`.

The room: importing it loads nothing but the errors, since it is also imported before the launcher. What a rank uses is
loaded from `distrun.public` when it is first used, and numpy with it.
"""

import sys
from typing import TYPE_CHECKING

if not TYPE_CHECKING and sys.platform != "linux":  # editors and type checkers elsewhere see the names
    from distrun.elsewhere import refuse

    refuse()

from distrun.errors import (
    BootstrapError as BootstrapError,
    CheckpointError as CheckpointError,
    CollectiveError as CollectiveError,
    DistrunError as DistrunError,
    JobAbortedError as JobAbortedError,
    LaunchError as LaunchError,
    MismatchError as MismatchError,
    NotInitializedError as NotInitializedError,
    NotOfferedError as NotOfferedError,
    RemoteError as RemoteError,
    StallError as StallError,
    UsageError as UsageError,
)

_imported = dict(globals())

if TYPE_CHECKING:
    from distrun.public import *
    from distrun.runner.launch.function import run as run

__version__ = "0.1.0"

if not TYPE_CHECKING:  # to type checkers, a module with `__getattr__` has all names

    def __getattr__(name: str) -> object:
        # The import system asks for names such as __path__, and that must not import numpy.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module 'distrun' has no attribute {name!r}")
        from importlib import import_module

        if name == "__all__":  # for `from distrun import *`
            return _names()
        # These need no numpy: a function of the launcher, and what IPython's `%load_ext distrun` calls.
        others = {"run": "distrun.runner.launch.function", "load_ipython_extension": "distrun.tools.notebook"}
        home = import_module(others.get(name, "distrun.public"))
        if not hasattr(home, name):
            raise AttributeError(f"module 'distrun' has no attribute {name!r}")
        value: object = getattr(home, name)
        globals()[name] = value  # the next access finds it without this function
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_names()})


def _names() -> list[str]:
    """Return the public names: what a rank uses, the errors, `run` and the version."""
    from importlib import import_module

    from distrun.exports import exported

    return sorted({*exported(vars(import_module("distrun.public"))), *exported(_imported), "run", "__version__"})
