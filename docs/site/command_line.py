"""The command line as a page: what `distrun --help` prints, in Markdown."""

from __future__ import annotations

import html
import inspect
import re

import click

from distrun.runner.cli import distrun
from distrun.runner.doctor.command import doctor

COMMANDS = {"distrun": distrun, "distrun doctor": doctor}
LINE = re.compile(r"^::: (?P<command>distrun[ \w]*) --help$", re.MULTILINE)


def expanded(text: str) -> str:
    """The text of a page with its lines `::: COMMAND --help` expanded."""
    return LINE.sub(lambda line: described(line["command"]), text)


def described(name: str) -> str:
    """A command's usage, its description and a table of its options."""
    command = COMMANDS[name]
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    records = [record for option in command.get_params(context) if (record := option.get_help_record(context))]
    rows = [f"| `{names}` | {plain(meaning)} |" for names, meaning in records]
    description = plain(inspect.cleandoc(command.help or ""))
    return "\n".join(["```", usage, "```", "", description, "", "| option | meaning |", "| --- | --- |", *rows])


def plain(text: str) -> str:
    """Text in which nothing is Markdown."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(text, quote=False))
