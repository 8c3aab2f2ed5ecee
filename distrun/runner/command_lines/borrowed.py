"""Flags of other launchers in a command line of distrun, if their meaning is unambiguous."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distrun.errors import UsageError
from distrun.runner.command_lines.launch_options import every_launch_option
from distrun.runner.command_lines.own_options import OwnOptions, count_attached, count_own, is_flag, own_options_of
from distrun.runner.command_lines.programs import program
from distrun.runner.command_lines.table import Becomes, Holds, Program, Translation
from distrun.runner.command_lines.translate import Taken, assembled, find, nearest, take

_UNDERSTOOD = ("horovodrun", "mpirun")
_ELSEWHERE = {
    "--gpus": "-H 'localhost:[0,1]'",
    "--gpu-ids": "-H 'localhost:[0,1]'",
    "--include": "-H 'a:[0,1],b'",
    "--num-processes": "-np N",
    "--num-gpus": "-np N",
    "--num-nodes": "--nnodes N",
    "--num-machines": "--nnodes N",
    "--machine-rank": "--node-rank K",
    "--env": "-x NAME=VALUE",
    "--cwd": "--wdir DIR",
    "--tee": "--output-dir DIR",
    "-t": "--output-dir DIR",
    "-m": "python -m MODULE",
    "--module": "python -m MODULE",
}
"""Options of accelerate, DeepSpeed and others, and ours for the same purpose."""


def translated(own: OwnOptions, words: Sequence[str], name: str = "distrun") -> Translation:
    """Return a command line with flags of other launchers replaced by distrun's options.

    Args:
        own: distrun's options, which take precedence. One may have another launcher's value, as in --map-by ppr:2:node.
        words: the command line.
        name: the command whose options they are.

    Raises:
        UsageError: a flag is neither an option of distrun nor a known flag of another launcher.
    """
    rest = list(words)
    taken = []
    while is_flag(rest):
        count = count_own(own, rest)
        option, equals, _ = rest[0].partition("=")
        launcher = None if count else _launcher_of(rest[0])
        if launcher is not None and (translation := _taken(launcher, rest, option in own, name)) is not None:
            taken.append(translation)
            if not {*taken[-1].options[:1]} <= own.keys():  # `distrun` has it, and this command, the doctor, lacks it
                raise UsageError(_unknown(own, option, name))
            continue
        if option in own:
            count = 1 if equals else count or 2  # click refuses a value that is not valid
        count = count or count_attached(own, rest[0])
        if not count:
            raise UsageError(_unknown(own, option, name))
        taken.append(Taken(rest[:count]))
        del rest[:count]
    return assembled(taken, rest)


def elsewhere(option: str) -> str | None:
    """Return our option for the purpose of an option that accelerate, DeepSpeed and others have."""
    return _ELSEWHERE.get(option)


def _taken(launcher: Program, rest: list[str], is_own: bool, name: str) -> Taken | None:
    """Remove a flag of another launcher from the words `rest`, and return its translation.

    None if it is an option of ours, too, and has a value that neither of the two allows.
    """
    words = list(rest)
    try:
        translation = take(replace(launcher, name=name), words)
    except UsageError:
        if is_own:
            return None
        raise
    rest[:] = words
    return translation


def _launcher_of(word: str) -> Program | None:
    """Return the launcher that a flag belongs to, or None if no known launcher has it.

    Raises:
        UsageError: several launchers have it, with different meanings.
    """
    name = word.partition("=")[0]
    # Abbreviations work in those launchers' own command lines. In distrun's, a part of a name is a typo.
    tables = [replace(program(launcher), abbreviations=False) for launcher in _UNDERSTOOD]
    found = [(table, row) for table in tables if (row := find(table, name)) is not None]
    if len({row.effect for _, row in found}) > 1:
        names = " and ".join(table.name for table, _ in found)
        raise UsageError(f"{name} is not the same to {names}: 'distrun-compat PROGRAM ...' understands it as theirs")
    return found[0][0] if found else None


def _unknown(own: OwnOptions, option: str, command: str) -> str:
    return f"there is no option {option}: {_remedy(own, option, command)}"


def _remedy(own: OwnOptions, option: str, command: str) -> str:
    own_spelling = option.replace("_", "-")
    if own_spelling in own:
        return f"did you mean {own_spelling}?"
    if own_spelling in own_options_of(every_launch_option()):
        return f"only launches have it, and {command} does not; see {command} --help"
    ours = elsewhere(own_spelling)
    if ours is not None and (ours.split()[0] in own or not ours.startswith("-")):
        return f"did you mean {ours}?"
    if (row := find(replace(program("torchrun"), abbreviations=False), option)) is not None:
        match row.effect:
            case Becomes(words) if words.split()[0] in own:
                return f"did you mean {words.replace('{}', row.values[0])}?"
            case Holds(why):
                return f"leave out this one of torchrun's, as {why}"
        return "'distrun-compat torchrun ...' understands it as torchrun's"
    names = [*own, *(name for launcher in _UNDERSTOOD for flag in program(launcher).flags for name in flag.names)]
    near = nearest(option, [name for name in names if name.lstrip("-") != option.lstrip("-")])
    return f"did you mean {near}?" if near else f"see {command} --help"
