"""Translates the words of another launcher's command line to distrun's by the table of its flags, and checks values."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from distrun.errors import UsageError
from distrun.host.numerals import real_number, whole_number
from distrun.runner.command_lines.own_options import is_flag
from distrun.runner.command_lines.table import Becomes, Flag, Holds, Ignored, Program, Refused, Translation


@dataclass(frozen=True)
class Taken:
    """The translation of one flag with its values."""

    options: Sequence[str]
    ignored: Sequence[tuple[str, str]] = ()
    joined: bool = False
    """As in `Becomes`, like `yields`."""
    yields: bool = False


def translate(program: Program, words: Sequence[str], environ: Mapping[str, str] | None = None) -> Translation:
    """Return the command line of distrun that starts the same job.

    Everything from the first word that is not a flag, or after `--`, is the command. Variables of `environ` may stand
    for flags that are not given.

    Raises:
        UsageError: a flag is unknown, lacks a value, or asks for something that distrun lacks.
    """
    rest = list(words)
    taken = [Taken(program.defaults, yields=True)]
    given = _from_variables(program, environ or {})
    while given:
        taken.append(take(program, given))
    while is_flag(rest):
        taken.append(take(program, rest))
    if rest[:1] == ["--"]:
        del rest[0]
    return program.finish(assembled(taken, rest))


def _from_variables(program: Program, environ: Mapping[str, str]) -> list[str]:
    """Return the flags for variables: --nnodes 2 for PET_NNODES=2, and --standalone for PET_STANDALONE=1."""
    words: list[str] = []
    for row in program.flags if program.variables else ():
        name = next(name for name in row.names if name.startswith("--"))
        value = environ.get(program.variables + name[2:].replace("-", "_").upper(), "")
        if row.values and value:
            words += [name, value]
        elif value and value != "0":
            words.append(name)
    return words


def take(program: Program, rest: list[str]) -> Taken:
    """Remove a flag and its values from the words `rest`, and return its translation.

    Raises:
        UsageError: the flag is unknown, lacks a value, or asks for something that distrun lacks.
    """
    spelling, flag, values = _read(program, rest)
    said = " ".join([spelling, *values])
    made = _apply(f"{program.name} {said}", flag, values)
    if isinstance(made, Ignored):
        return Taken((), ((said, made.why),))
    options, ignored = (made.options, made.ignored) if isinstance(made, Translation) else (made, ())
    if isinstance(flag.effect, Becomes):
        return Taken(options, ignored, flag.effect.joined, flag.effect.yields)
    return Taken(options, ignored)


def assembled(taken: Iterable[Taken], command: Sequence[str]) -> Translation:
    """Return the command line made of translated flags and a command."""
    yielding: list[str] = []
    options: list[str] = []
    ignored: list[tuple[str, str]] = []
    joined: dict[str, int] = {}  # option of distrun -> the index of its value
    for item in taken:
        ignored += item.ignored
        if item.yields:
            yielding += item.options
        elif item.joined and item.options[0] in joined:
            options[joined[item.options[0]]] += f",{item.options[1]}"
        else:
            if item.joined:
                joined[item.options[0]] = len(options) + 1
            options += item.options
    return Translation((*yielding, *options), tuple(command), tuple(ignored))


def find(program: Program, spelling: str) -> Flag | None:
    """Return the row of a flag, or None if it is unknown."""
    rows = {name: flag for flag in program.flags for name in flag.names}
    if spelling in rows:
        return rows[spelling]
    if program.any_dashes:
        bare = spelling.lstrip("-")
        return rows.get(f"-{bare}", rows.get(f"--{bare}"))
    if program.abbreviations and spelling.startswith("--"):
        begun = {id(flag): flag for name, flag in rows.items() if name.startswith(spelling)}
        if len(begun) == 1:
            return next(iter(begun.values()))
    return None


def _read(program: Program, rest: list[str]) -> tuple[str, Flag, list[str]]:
    """Remove a flag and its values from the words `rest`, and return its spelling, its row and its values."""
    word = rest.pop(0)
    spelling, equals, attached = word.partition("=")
    flag = find(program, spelling)
    if flag is None and not program.any_dashes and not word.startswith("--"):  # -p22
        flag, spelling, equals, attached = find(program, word[:2]), word[:2], "=", word[2:]
        flag = flag if flag is not None and flag.values else None
    if flag is None:
        raise UsageError(_unknown(program, word.partition("=")[0]))
    values = [attached] if equals else []
    if len(values) > len(flag.values):
        raise UsageError(f"{program.name} {spelling} takes no value, and was given {attached!r}: leave it out")
    if flag.one_word and not values and rest and "=" in rest[0]:
        values = rest.pop(0).split("=", 1)
    missing = len(flag.values) - len(values)
    if missing > len(rest):
        raise UsageError(f"{program.name} {spelling} lacks a value: give {' '.join([spelling, *flag.values])}")
    values += rest[:missing]
    del rest[:missing]
    return spelling, flag, values


def _apply(said: str, flag: Flag, values: Sequence[str]) -> list[str] | Ignored | Translation:
    match flag.effect:
        case Becomes(words, None):
            given = iter(values)
            return [re.sub(r"{}", lambda _: next(given), word) for word in words.split()]
        case Becomes(_, convert) if convert is not None:
            try:
                return convert(*values)
            except UsageError as error:
                raise UsageError(f"{said}: {error}") from None
        case Refused(remedy):
            raise UsageError(f"{said}: {remedy}")
        case Ignored() as ignored:
            return ignored
        case Holds() | _:
            return []


def _unknown(program: Program, spelling: str) -> str:
    near = nearest(spelling, [name for flag in program.flags for name in flag.names])
    remedy = f"did you mean {near}?" if near else f"see distrun-compat {program.name} --help"
    return f"{program.name} {spelling} is not understood: {remedy}"


def nearest(spelling: str, names: Iterable[str], likeness: float = 0.85) -> str | None:
    """Return the name that a misspelt flag probably means, or None in doubt: a wrong guess is worse than none."""
    import difflib

    close = difflib.get_close_matches(spelling, list(names), n=1, cutoff=likeness)
    return close[0] if close else None


def number(text: str) -> float:
    """Return `text` as a number >= 0.

    Raises:
        UsageError: the text is not such a number.
    """
    value = real_number(text)
    if value is None:
        raise UsageError(f"{text!r} is not a number >= 0: correct it")
    return value


def whole(text: str) -> int:
    """Return `text` as a whole number >= 1.

    Raises:
        UsageError: the text is not such a number.
    """
    number = whole_number(text, most=sys.maxsize)
    if number is None:
        raise UsageError(f"{text!r} is not a whole number >= 1: correct it")
    return number


def one_of(text: str, *allowed: str) -> str:
    """Return `text` in lower case, if that is one of the allowed words.

    Raises:
        UsageError: it is not.
    """
    if text.lower() not in allowed:
        raise UsageError(f"{text!r} is not understood: allowed are {', '.join(allowed)}")
    return text.lower()
