"""From the words of another launcher's command line to those of distrun's, by the table of its flags."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from distrun.errors import UsageError
from distrun.runner.command_lines.table import Becomes, Flag, Holds, Ignored, Program, Refused, Translation


def translate(program: Program, words: Sequence[str]) -> Translation:
    """Return the command line of distrun that starts the same job.

    Everything from the first word that is no flag, or after `--`, is the command.

    Raises:
        UsageError: a flag is unknown, lacks a value, or asks for what distrun has not.
    """
    options = list(program.defaults)
    ignored: list[tuple[str, str]] = []
    joined: dict[str, int] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        spelling, flag, values = _read(program, word, rest)
        said = " ".join([spelling, *values])
        made = _apply(f"{program.name} {said}", flag, values)
        if isinstance(made, Ignored):
            ignored.append((said, made.why))
        elif isinstance(flag.effect, Becomes) and flag.effect.joined and made:
            if made[0] in joined:
                options[joined[made[0]]] += f",{made[1]}"
            else:
                joined[made[0]] = len(options) + 1
                options += made
        else:
            options += made
    return program.finish(Translation(tuple(options), tuple(rest), tuple(ignored)))


def _read(program: Program, word: str, rest: list[str]) -> tuple[str, Flag, list[str]]:
    """Return a flag as it was spelt, its row and its values, which are taken from `rest`."""
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
    missing = len(flag.values) - len(values)
    if missing > len(rest):
        raise UsageError(f"{program.name} {spelling} lacks a value: give {' '.join([spelling, *flag.values])}")
    values += rest[:missing]
    del rest[:missing]
    return spelling, flag, values


def find(program: Program, spelling: str) -> Flag | None:
    """Return the row of a flag, None if there is none."""
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


def _apply(said: str, flag: Flag, values: Sequence[str]) -> list[str] | Ignored:
    match flag.effect:
        case Becomes(words, None):
            given = iter(values)
            return [re.sub(r"{}", lambda _: next(given), word) for word in words.split()]
        case Becomes(_, convert) if convert is not None:
            return convert(*values)
        case Refused(remedy):
            raise UsageError(f"{said}: {remedy}")
        case Ignored() as ignored:
            return ignored
        case Holds() | _:
            return []


def _unknown(program: Program, spelling: str) -> str:
    names = [name for flag in program.flags for name in flag.names]
    near = nearest(spelling, names)
    remedy = f"did you mean {near}?" if near else f"see distrun-compat {program.name} --help"
    return f"{program.name} {spelling} is not understood: {remedy}"


def nearest(spelling: str, names: Iterable[str]) -> str | None:
    """Return the name that a spelling is likely to be meant for; a guess that may be wrong is worse than none."""
    close = difflib.get_close_matches(spelling, list(names), n=1, cutoff=0.85)
    return close[0] if close else None


def told(ignored: Sequence[tuple[str, str]]) -> str:
    """Return one line about all flags that were ignored: `--mca pml ob1 (of Open MPI's libraries), -q (...)`."""
    reasons: dict[str, list[str]] = {}
    for said, why in ignored:
        reasons.setdefault(why, []).append(said)
    return "ignored: " + "; ".join(f"{', '.join(flags)} ({why})" for why, flags in reasons.items())
