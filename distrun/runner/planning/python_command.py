"""Commands that are Python programs, split so that a spare can run them later. Pure, except for reading a program's
file.

A spare is the same interpreter with the same options, which runs a program of distrun first. So does a rank in
zero-line mode.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distrun.errors import UsageError

_PYTHON = re.compile(r"(?:python|pypy)\d*(?:\.\d+)*t?")
_MODES = ("global", "scale", "explain")
_FLAGS = frozenset("bBdEIOPqsSuvx")  # options of one letter without a value
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True)
class PythonCommand:
    """A command, split into its interpreter and its program."""

    interpreter: tuple[str, ...]
    """The interpreter, with its own options."""
    program: tuple[str, ...]
    """The rest: `script.py args`, `-m module args` or `-c code args`."""


def split(command: Sequence[str], path: str | None, wdir: str) -> PythonCommand | None:
    """Return a command in its two parts, or None if it is not a Python program, or one that a spare could not run.

    Args:
        command: the command.
        path: the PATH that the command is searched on.
        wdir: the directory that it runs in.
    """
    if not _PYTHON.fullmatch(os.path.basename(command[0])):
        return _split_script(command, path, wdir)
    words = list(command)
    interpreter = [words.pop(0)]
    while words and words[0].startswith("-") and words[0] not in ("-", "-m", "-c"):
        option = words[0]
        if option in _WITH_VALUE:
            count = 2
        elif option.startswith(("-W", "-X", "--check-hash-based-pycs=")) or _FLAGS.issuperset(option[1:]):
            count = 1
        else:  # -i, -um module and the like
            return None
        interpreter += words[:count]
        del words[:count]
    if not words or words[0] == "-" or (words[0] in ("-m", "-c") and len(words) < 2):
        return None
    is_script = words[0] not in ("-m", "-c")
    if is_script and os.path.isdir(os.path.join(wdir, words[0])):
        return None
    return PythonCommand(tuple(interpreter), tuple(words))


def program(command: Sequence[str]) -> str | None:
    """Return the file that a Python in `command` runs, or what stands for standard input: `-`, or nothing.

    None = there is no Python, it runs a module or code, or it has options that are not known here.
    """
    if not command or not _PYTHON.fullmatch(os.path.basename(command[0])):
        return None
    words = [*command[1:], ""]
    while words[0].startswith("-") and words[0] != "-":
        if words[:2] == ["-m", "distrun.auto"]:
            return words[3]
        if words[0] in _WITH_VALUE:
            del words[:1]
        elif not (words[0].startswith(("-W", "-X", "--check-hash")) or _FLAGS.issuperset(words[0][1:])):
            return None
        del words[:1]
        words = words or [""]
    return words[0]


def with_interpreter(command: tuple[str, ...], wdir: str | None) -> tuple[str, ...]:
    """Return a command with a Python in front, if it is a script that cannot be executed by itself: `train.py`."""
    if not command or not command[0].endswith(".py"):
        return command
    path = os.path.join(wdir or "", command[0])
    if not os.path.isfile(path) or shutil.which(path if os.sep in command[0] else command[0]) is not None:
        return command
    return ("python" if shutil.which("python") else sys.executable, *command)


def _split_script(command: Sequence[str], path: str | None, wdir: str) -> PythonCommand | None:
    """Return the parts of a command that is a script whose first line names a Python, such as pip installs."""
    found = shutil.which(os.path.join(wdir, command[0]) if os.sep in command[0] else command[0], path=path)
    if found is None:
        return None
    try:
        with Path(found).open("rb") as file:
            first = file.readline(1000)
    except OSError:
        return None
    words = first.decode(errors="replace").removeprefix("#!").split() if first.startswith(b"#!") else []
    if words[:1] == ["/usr/bin/env"]:
        words = words[1:]
    return (
        split([*words, found, *command[1:]], path, wdir)
        if words and _PYTHON.fullmatch(os.path.basename(words[0]))
        else None
    )


def zero_line(command: Sequence[str], mode: str, path: str | None, wdir: str) -> tuple[str, ...]:
    """Return the command that runs a plain script in zero-line mode (`distrun.auto`). For `path` see `split`.

    Raises:
        UsageError: the command is not a Python script.
    """
    if command[0] in _MODES:
        raise UsageError(f"--auto {command[0]} is not understood: write --auto={command[0]}")
    parts = split(command, path, wdir)
    if parts is None or parts.program[0] == "-c":
        raise UsageError(
            f"--auto cannot run {' '.join(command)!r}: it takes a Python script, as in distrun --auto -np 2 python "
            "train.py, or a module, as in python -m train"
        )
    return (*parts.interpreter, "-m", "distrun.auto", mode, *parts.program)
