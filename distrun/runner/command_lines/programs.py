"""The programs whose command lines can be translated, by name, and the table of each as text for its help."""

from __future__ import annotations

from importlib import import_module

import click

from distrun.errors import UsageError
from distrun.runner.command_lines.table import Becomes, Flag, Holds, Ignored, Program, Refused

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


def rows(program: Program) -> list[tuple[str, str]]:
    """Return each flag with its spellings and values, and its effect in distrun."""
    return [(" ".join([", ".join(flag.names), *flag.values]), _effect(flag)) for flag in program.flags]


def described(program: Program) -> str:
    """Return the help of `distrun-compat PROGRAM`."""
    dashes = " Flags of several letters may begin with one dash or with two." if program.any_dashes else ""
    page = click.HelpFormatter(max_width=120)
    page.write_usage(f"distrun-compat {program.name}", "[FLAGS] COMMAND")
    page.write_paragraph()
    page.write_text(f"The flags of {program.name} that are understood, and what becomes of each.{dashes}")
    if program.defaults:
        page.write_paragraph()
        page.write_text(f"Unless flags say otherwise, it is distrun {' '.join(program.defaults)}.")
    with page.section("Flags"):
        page.write_dl(rows(program), col_max=44)
    return page.getvalue()


def _effect(flag: Flag) -> str:
    match flag.effect:
        case Becomes(words, None):
            for value in flag.values:
                words = words.replace("{}", value, 1)
            return words
        case Becomes(words):
            return words.replace("{}", flag.values[0]) if flag.values else words
        case Holds(why):
            return f"accepted: {why}"
        case Ignored(why):
            return f"ignored: {why}"
        case Refused(remedy):
            return f"refused: {remedy}"
