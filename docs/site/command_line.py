"""The command lines as Markdown: all options of each command, and what becomes of the flags of other launchers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

import click
from rendering import item

from distrun.cli import distrun
from distrun.runner.command_lines.launch_options import every_launch_option
from distrun.runner.command_lines.programs import program, rows as flags_of
from distrun.tools.help.catalogue import COMMANDS, command
from distrun.tools.help.groups import GROUPS


def flags(name: str) -> str:
    """The flags of another launcher, and what becomes of each."""
    return "\n".join(item(flag, plain(effect)) for flag, effect in flags_of(program(name)))


def described(name: str, level: int) -> str:
    """A command's usage, its description and its options, those of a launch in groups. `name` is "" for a launch."""
    found = command(name) if name else distrun
    # With its settings: click keeps the help option of the first context, and so whether -h is one of its names.
    context = click.Context(found, info_name=f"distrun {name}".rstrip(), **found.context_settings)
    usage = " ".join([context.command_path, *found.collect_usage_pieces(context)])
    parts = [f"```\n{usage}\n```", *paragraphs(found.help or "")]
    options = [option for option in found.get_params(context) if isinstance(option, click.Option)]
    if name:
        return "\n\n".join([*parts, listed(options, context)])
    by_name = {spelling: option for option in every_launch_option() for spelling in option.opts}
    for group in GROUPS.values():
        chosen = [by_name[spelling] for spelling in group.options.split()]
        parts += [f"{'#' * level} {group.title}", f"See [{group.page}](../{group.page}.md).", listed(chosen, context)]
    return "\n\n".join(parts)


def listed(options: Sequence[click.Parameter], context: click.Context) -> str:
    """Options as a list."""
    records = [record for option in options if (record := option.get_help_record(context))]
    return "\n".join(item(names, plain(meaning)) for names, meaning in records)


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a help text, and as code those in which click breaks no lines."""
    parts = inspect.cleandoc(text).split("\n\n")
    return [
        "```\n{}\n```".format(part.removeprefix("\b\n")) if part.startswith("\b") else plain(part) for part in parts
    ]


def plain(text: str) -> str:
    """Text in which nothing is Markdown, which underscores within a word and a lone < are not anyway."""
    return re.sub(r"[\\`*]|\b_|_\b|\](?=[(\[])", r"\\\g<0>", re.sub(r"<(?=[\w/!])", "&lt;", text))


ALL = ["", *COMMANDS]
