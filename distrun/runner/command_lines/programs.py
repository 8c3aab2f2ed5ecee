"""The programs whose command lines can be translated, by name."""

from __future__ import annotations

from importlib import import_module

from distrun.errors import UsageError
from distrun.runner.command_lines.table import Program

_MODULES = {"horovodrun": "horovodrun", "mpirun": "mpirun", "mpiexec": "mpirun", "torchrun": "torchrun"}

NAMES = tuple(_MODULES)


def program(name: str) -> Program:
    """Return the table of a program, without importing the others.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in _MODULES:
        raise UsageError(f"the command line of {name!r} is not understood: allowed are {', '.join(NAMES)}")
    table: Program = import_module(f"distrun.runner.command_lines.{_MODULES[name]}").PROGRAM
    return table
