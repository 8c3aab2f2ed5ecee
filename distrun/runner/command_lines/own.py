"""The command line of distrun itself, on which flags of other launchers are understood too, where only one is meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import click

from distrun.errors import UsageError
from distrun.runner.command_lines.programs import program
from distrun.runner.command_lines.table import Program, Translation
from distrun.runner.command_lines.translate import Taken, assembled, find, is_flag, nearest, take

_UNDERSTOOD = ("horovodrun", "mpirun")
_RECOGNISED = ("torchrun",)


def translated(command: click.Command, words: Sequence[str]) -> Translation:
    """Return a command line in which flags of other launchers are replaced by ours.

    Args:
        command: the command with our own options, which always win.
        words: the command line.

    Raises:
        UsageError: a flag is neither ours nor one that is understood.
    """
    own = _own_options(command)
    rest = list(words)
    taken = []
    while is_flag(rest):
        count = _exactly(own, rest[0]) or 0
        if not count and (launcher := _launcher_of(rest[0])) is not None:
            taken.append(take(launcher, rest))
            continue
        count = count or _attached(own, rest[0])
        if not count:
            raise UsageError(_unknown(own, rest[0].partition("=")[0]))
        taken.append(Taken(rest[:count]))
        del rest[:count]
    return assembled(taken, rest)


def _own_options(command: click.Command) -> dict[str, bool]:
    """Return our options by their names, and whether each takes a value."""
    found = {"--help": False, "-h": False}
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            names = (*parameter.opts, *parameter.secondary_opts)
            found |= dict.fromkeys(names, not parameter.is_flag)
    return found


def _exactly(own: Mapping[str, bool], word: str) -> int:
    """Return the number of words of our option at the beginning, 0 if it is none of ours."""
    name, equals, _ = word.partition("=")
    return 0 if name not in own else 2 if own[name] and not equals else 1


def _attached(own: Mapping[str, bool], word: str) -> int:
    """Return the same for short options that share a word with each other or with a value: -vp 22, -p22.

    -port and -identity are none: they are misspelt long options.
    """
    if word.startswith("--"):
        return 0
    for position, letter in enumerate(word[1:], start=1):
        name, value = f"-{letter}", word[position + 1 :]
        if name not in own or (value and name in ("-p", "-i") and value.isalpha()):
            return 0
        if own[name]:
            return 1 if value else 2
    return 1


def _launcher_of(word: str) -> Program | None:
    """Return the launcher that a flag is one of, None if it is of none that is understood here.

    Raises:
        UsageError: several have it, and it means something else to each.
    """
    name = word.partition("=")[0]
    # Abbreviations are theirs: on our command line a part of a name is a typing error.
    tables = [replace(program(launcher), abbreviations=False) for launcher in _UNDERSTOOD]
    found = [(table, row) for table in tables if (row := find(table, name)) is not None]
    if len({row.effect for _, row in found}) > 1:
        names = " and ".join(table.name for table, _ in found)
        raise UsageError(f"{name} is not the same to {names}: 'distrun-compat PROGRAM ...' understands it as theirs")
    return found[0][0] if found else None


def _unknown(own: Mapping[str, bool], name: str) -> str:
    for launcher in _RECOGNISED:
        if find(program(launcher), name) is not None:
            return f"there is no option {name}: 'distrun-compat {launcher} ...' understands it as {launcher}'s"
    names = [*own, *(name for launcher in _UNDERSTOOD for flag in program(launcher).flags for name in flag.names)]
    near = nearest(name, names)
    return f"there is no option {name}: {f'did you mean {near}?' if near else 'see distrun --help'}"
