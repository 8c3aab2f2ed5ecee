"""Running a program as the interpreter would: `script args` or `-m module args`, in its own module `__main__`."""

from __future__ import annotations

import builtins
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


def run(program: Sequence[str]) -> None:
    """Run a program. Its exceptions are passed to the caller.

    `sys.argv`, `__main__`, `__file__` and the search path are the same as when the interpreter runs the program.

    Args:
        program: `script args` or `-m module args`.
    """
    # With -P and -I, and PYTHONSAFEPATH, Python does not put the program's folder in front of the search path.
    is_safe = bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)
    module = ModuleType("__main__")
    vars(module).update(__builtins__=builtins, __spec__=None, __doc__=None)
    sys.modules["__main__"] = module
    if program[0] == "-m":
        sys.argv[:] = ["-m", *program[2:]]  # the current folder is at the front of the path already
        runpy._run_module_as_main(program[1], alter_argv=True)  # type: ignore[attr-defined]  # what -m itself calls
        return
    script = os.path.abspath(program[0])
    if not is_safe:
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    sys.argv[:] = program
    vars(module).update(__file__=script, __loader__=SourceFileLoader("__main__", script), __cached__=None)
    exec(compile(Path(script).read_bytes(), script, "exec", dont_inherit=True), vars(module))


def source_of(program: Sequence[str]) -> Path | None:
    """Return the path of a program's source, or None if it cannot be found without running the program."""
    if program[0] != "-m":
        return Path(program[0])
    try:
        spec = find_spec(program[1])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = find_spec(f"{program[1]}.__main__")
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None
