"""The command line of `distrun completion`."""

from __future__ import annotations

import click

from distrun.errors import UsageError
from distrun.tools.completion.candidates import SHELLS, candidates
from distrun.tools.completion.scripts import SCRIPTS, answer, install as installed

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


@click.command(context_settings=_SETTINGS)
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--install", is_flag=True, help="Write the script to where the shell finds it, for this user.")
@click.option("--words", "asks", is_flag=True, hidden=True)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="")
def completion(shell: str, install: bool, asks: bool, words: tuple[str, ...]) -> int:
    """Print the script that completes command lines of distrun in a shell, or install it.

    It completes commands, options and their values, profiles of the settings file, running jobs, and, after -H, hosts
    of ~/.ssh/config and known_hosts. In zsh, --install also adds a line to .zshrc.
    """
    if asks:
        click.echo(answer(shell, candidates(words or ("",))), nl=False)
    elif install:
        try:
            click.echo(installed(shell))
        except OSError as error:
            raise UsageError(f"{error.filename} cannot be written: {error.strerror}; correct that") from None
    else:
        click.echo(SCRIPTS[shell], nl=False)
    return 0
