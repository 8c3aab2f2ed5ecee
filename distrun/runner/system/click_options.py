"""Options of command lines as rows of a table: `option("-p --ssh-port PORT", "SSH port of other hosts.", int)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
POSITIVE = click.FloatRange(0, min_open=True)


def option(names: str, help: str, type: Any = None, **more: Any) -> Callable[[Command], Command]:
    """Return a click option.

    Args:
        names: the spellings, then the parameter's name if it is not the first long spelling, then a name for the value
            that people read: `-x exports NAME=VALUE`.
        help: what it does.
        type: the type of the value. The option is a flag without it and without a name for the value.
        more: further arguments of `click.option`.
    """
    words = names.split()
    declared = [word for word in words if word.startswith("-") or (word.isidentifier() and word.islower())]
    metavar = " ".join(words[len(declared) :]) or None
    if metavar is None and type is None:
        more["is_flag"] = True
    return click.option(*declared, metavar=metavar, help=help, type=type, **more)


def giving(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command these options, which its help shows in this order."""

    def give(command: Command) -> Command:
        for each in reversed(options):
            command = each(command)
        return command

    return give
