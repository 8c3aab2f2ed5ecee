"""Flags of other launchers on our own command line, where only one is meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distrun.errors import UsageError
from distrun.runner.command_lines.own_options import OwnOptions, count_attached, count_own, is_flag
from distrun.runner.command_lines.programs import program
from distrun.runner.command_lines.table import Program, Translation
from distrun.runner.command_lines.translate import Taken, assembled, find, nearest, take

_UNDERSTOOD = ("horovodrun", "mpirun")
_RECOGNISED = ("torchrun",)


def translated(own: OwnOptions, words: Sequence[str], name: str = "distrun") -> Translation:
    """Return a command line in which flags of other launchers are replaced by ours.

    Args:
        own: our own options, which always win; but one may have another launcher's value, as in --map-by ppr:2:node.
        words: the command line.
        name: the command whose options they are.

    Raises:
        UsageError: a flag is neither ours nor one that is understood.
    """
    rest = list(words)
    taken = []
    while is_flag(rest):
        count = count_own(own, rest)
        if not count and (launcher := _launcher_of(rest[0])) is not None:
            flag = rest[0]
            taken.append(take(launcher, rest))
            if not {*taken[-1].options[:1]} <= own.keys():  # distrun has such an option, and the doctor has not
                raise UsageError(_unknown(own, flag.partition("=")[0], name))
            continue
        option, equals, _ = rest[0].partition("=")
        if option in own:
            count = 1 if equals else count or 2  # a value that is not understood at all is for click to refuse
        count = count or count_attached(own, rest[0])
        if not count:
            raise UsageError(_unknown(own, option, name))
        taken.append(Taken(rest[:count]))
        del rest[:count]
    return assembled(taken, rest)


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


def _unknown(own: OwnOptions, option: str, command: str) -> str:
    for launcher in _RECOGNISED:
        if find(program(launcher), option) is not None:
            return f"there is no option {option}: 'distrun-compat {launcher} ...' understands it as {launcher}'s"
    names = [*own, *(name for launcher in _UNDERSTOOD for flag in program(launcher).flags for name in flag.names)]
    near = None if option in names else nearest(option, names)
    return f"there is no option {option}: {f'did you mean {near}?' if near else f'see {command} --help'}"
