"""The command line of `distrun help`."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable

import click

from distrun import errors
from distrun.errors import UsageError
from distrun.runner.command_lines.launch_options import every_launch_option
from distrun.runner.command_lines.translate import nearest
from distrun.tools.help.catalogue import COMMANDS, command
from distrun.tools.help.groups import GROUPS
from distrun.tools.help.screen import screen
from distrun.tools.help.words import explaining

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120, "ignore_unknown_options": True}
_WIDTH = 100


@click.command("help", context_settings=_SETTINGS)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def help(words: tuple[str, ...]) -> int:
    """Explain options, commands and error messages.

    WORDS are a group of options, as in 'distrun help elastic'; 'all'; an option; a command; or a word or some of a
    message, as in 'distrun help host key'. Without any, the most used options are shown.
    """
    click.echo(_answer(" ".join(words)), nl=False)
    return 0


def _answer(asked: str) -> str:
    if not asked:
        return screen()
    options = every_launch_option()
    if asked == "all":
        return "\n".join(_group(name, options) for name in GROUPS)
    if asked in GROUPS:
        return _group(asked, options)
    if asked in COMMANDS:
        found = command(asked)
        settings = found.context_settings
        return found.get_help(click.Context(found, info_name=f"distrun {asked}", **settings)) + "\n"
    if named := [option for option in options if _is_named(option, asked)]:
        return _table(named)
    if explained := explaining(asked):
        return "\n".join(
            f"{textwrap.fill(word.text, _WIDTH, break_on_hyphens=False)}\nMore: docs/{word.page}\n"
            for word in explained
        )
    if isinstance(error := getattr(errors, asked, None), type):
        return f"{asked}: {inspect.getdoc(error)}\nMore: docs/when-it-fails.md#errors-in-python\n"
    if mentioned := [option for option in options if asked.lower() in (option.help or "").lower()]:
        return _table(mentioned)
    known = [*GROUPS, *COMMANDS, *(name for option in options for name in option.opts)]
    if meant := nearest(asked, known, 0.75):
        raise UsageError(f"nothing is known about {asked!r}: did you mean 'distrun help {meant}'?")
    groups = ", ".join(GROUPS)
    raise UsageError(
        f"nothing is known about {asked!r}: give a command, an option, a word of a message, all, or {groups}"
    )


def _is_named(option: click.Parameter, asked: str) -> bool:
    names = (*option.opts, *option.secondary_opts)
    return asked in names or (not asked.startswith("-") and f"--{asked}" in names)


def _group(name: str, options: Iterable[click.Option]) -> str:
    title, names, page = GROUPS[name]
    chosen = [option for each in names.split() for option in options if _is_named(option, each)]
    return f"{title} ({name}; docs/{page}.md)\n{_table(chosen)}"


def _table(options: Iterable[click.Option]) -> str:
    context = click.Context(click.Command("distrun"))
    page = click.HelpFormatter(width=_WIDTH)
    with page.indentation():
        page.write_dl([record for option in options if (record := option.get_help_record(context))], col_max=30)
    return page.getvalue()
