"""Telling our own options from flags of other launchers, without reading any table of theirs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import click

OwnOptions = Mapping[str, Collection[str] | bool]
"""The options by name: whether one takes a value, or the values that it may have."""


def own_options(command: click.Command) -> OwnOptions:
    """Return the options of a command."""
    found: dict[str, Collection[str] | bool] = {"--help": False, "-h": False}
    for option in command.params:
        if isinstance(option, click.Option):
            choices = option.type.choices if isinstance(option.type, click.Choice) else not option.is_flag
            found |= dict.fromkeys((*option.opts, *option.secondary_opts), choices)
    return found


def are_all_own(own: OwnOptions, words: Sequence[str]) -> bool:
    """Whether a command line has no flags but our own."""
    rest = list(words)
    while is_flag(rest):
        count = count_own(own, rest)
        if not count:
            return False
        del rest[:count]
    return True


def is_flag(words: Sequence[str]) -> bool:
    """Whether words go on with a flag."""
    return bool(words) and words[0].startswith("-") and words[0] not in ("-", "--")


def count_own(own: OwnOptions, words: Sequence[str]) -> int:
    """Return the number of words of our option at the beginning; 0: it is none of ours, or has a value that is not."""
    name, equals, value = words[0].partition("=")
    kind = own.get(name)
    if kind is None:
        return 0
    if isinstance(kind, bool):
        return 2 if kind and not equals else 1
    value = value if equals else "".join(words[1:2])
    return 0 if value not in kind else 1 if equals else 2


def count_attached(own: OwnOptions, word: str) -> int:
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


def with_value(own: OwnOptions, words: Sequence[str], option: str, value: str) -> list[str]:
    """Return a command line in which an option that stands alone has a value: what follows it is the next option, or
    the command.

    Args:
        own: our own options.
        words: the command line.
        option: the option, whose value may be left out.
        value: the value that it has then.
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
