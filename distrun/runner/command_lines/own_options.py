"""Distinguishing distrun's own options from flags of other launchers, without loading the launchers' tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import click

from distrun.runner.planning import python_command

_COMMON = ("--help", "--version", "--verbose", "--quiet")  # most programs have these
_LONGEST = 1 << 20  # characters of a script that are searched

OwnOptions = Mapping[str, Collection[str] | bool]
"""For each option's name, whether it takes a value, or the values that are allowed."""


def own_options(command: click.Command) -> OwnOptions:
    """Return the options of a click command."""
    return own_options_of(command.params)


def own_options_of(parameters: Iterable[click.Parameter]) -> OwnOptions:
    """Return the options among the parameters of a click command."""
    found: dict[str, Collection[str] | bool] = {"--help": False, "-h": False}
    for option in parameters:
        if isinstance(option, click.Option):
            choices = option.type.choices if isinstance(option.type, click.Choice) else not option.is_flag
            found |= dict.fromkeys((*option.opts, *option.secondary_opts), choices)
    return found


def misplaced(own: OwnOptions, command: Sequence[str], wdir: str | None) -> list[str]:
    """Return distrun's long options among the arguments of a script that does not mention them."""
    script = python_command.program(command)
    if not script:
        return []
    words = [word.partition("=")[0] for word in command[command.index(script) + 1 :]]
    found = [word for word in words if word == "-np" or (word.startswith("--") and {word} <= own.keys() - {*_COMMON})]
    if not found:
        return []
    try:
        with Path(wdir or "", script).open(errors="replace") as file:
            text = file.read(_LONGEST).replace("_", "-")
    except OSError:
        return []
    return [word for word in found if word.lstrip("-") not in text]


def are_all_own(own: OwnOptions, words: Sequence[str]) -> bool:
    """Whether all flags of a command line are distrun's own options."""
    rest = list(words)
    while is_flag(rest):
        count = count_own(own, rest)
        if not count:
            return False
        del rest[:count]
    return True


def is_flag(words: Sequence[str]) -> bool:
    """Whether the next word is a flag."""
    return bool(words) and words[0].startswith("-") and words[0] not in ("-", "--")


def count_own(own: OwnOptions, words: Sequence[str]) -> int:
    """Return the number of words of the option at the beginning, or 0 if it or its value is not one of distrun's."""
    name, equals, value = words[0].partition("=")
    kind = own.get(name)
    if kind is None:
        return 0
    if isinstance(kind, bool):
        return 2 if kind and not equals else 1
    value = value if equals else "".join(words[1:2])
    return 0 if value not in kind else 1 if equals else 2


def count_attached(own: OwnOptions, word: str) -> int:
    """Return the number of words of short options that share a word with each other or with a value: -vp 22, -p22.

    -port and -identity do not count (0): they are misspelt long options.
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


def with_defaults(own: OwnOptions, words: Sequence[str]) -> list[str]:
    """Return a command line in which the options whose value may be left out have one."""
    for option, value in (("--auto", "global"), ("--bootstrap", "")):
        if option in words:
            words = with_value(own, words, option, value)
    return [*words]


def with_value(own: OwnOptions, words: Sequence[str], option: str, value: str) -> list[str]:
    """Return a command line with a value added to an option that stands alone, as the word after it is not its value.

    Args:
        own: distrun's own options.
        words: the command line.
        option: the option, whose value may be left out.
        value: the default for its value.
    """
    found: list[str] = []
    rest = list(words)
    while is_flag(rest):
        if rest[0] == option:
            found.append(f"{rest.pop(0)}={value}")
            continue
        count = count_own(own, rest) or 1
        found += rest[:count]
        del rest[:count]
    return found + rest
