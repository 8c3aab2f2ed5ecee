"""The command line of `distrun completion`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from distrun.errors import UsageError

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
# Bash splits words at colons, and wants only what follows the last one.
_BASH = """\
_distrun() {
    local line=${COMP_LINE:0:COMP_POINT} words word
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    word=${words[-1]}
    mapfile -t COMPREPLY < <("${words[0]}" completion bash --words -- "${words[@]:1}" 2>/dev/null)
    [[ $word == *:* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
}
complete -o bashdefault -o default -F _distrun distrun
"""


@click.command(context_settings=_SETTINGS)
@click.argument("shell", type=click.Choice(["bash"]))
@click.option("--install", is_flag=True, help="Write the script to where the shell finds it, for this user.")
@click.option("--words", "asks", is_flag=True, hidden=True)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def completion(shell: str, install: bool, asks: bool, words: tuple[str, ...]) -> int:
    """Print the script that completes command lines of distrun in a shell, or install it.

    It completes commands, options and their values, and, after -H, hosts of ~/.ssh/config.
    """
    if asks:
        from distrun.tools.completion.candidates import candidates

        click.echo("".join(f"{word}\n" for word in candidates(words or ("",))), nl=False)
    elif install:
        path = _install()
        click.echo(
            f"{path} is written: open a new {shell}, which needs the package bash-completion, or source the file"
        )
    else:
        click.echo(_BASH, nl=False)
    return 0


def _install() -> Path:
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    path = Path(data, "bash-completion", "completions", "distrun")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_BASH)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; give another XDG_DATA_HOME") from None
    return path
