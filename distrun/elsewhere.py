"""The refusal of systems on which distrun does not run."""

import sys
from pathlib import PurePath
from typing import NoReturn

_NAMES = {"darwin": "macOS", "win32": "Windows", "cygwin": "Cygwin"}


def refuse() -> NoReturn:
    """End a command of distrun with status 2, and the import of a script with an ImportError, by the same sentence."""
    sentence = (
        f"distrun needs Linux, and this is {_NAMES.get(sys.platform, sys.platform)}: use a Linux machine, or here a "
        "container, a virtual machine or, on Windows, WSL 2"
    )
    if PurePath(*sys.argv[:1]).stem in ("distrun", "distrun-compat") or sys.orig_argv[1:3] == ["-m", "distrun"]:
        print(f"distrun: error: {sentence}", file=sys.stderr)
        sys.exit(2)
    raise ImportError(sentence)
