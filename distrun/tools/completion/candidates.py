"""The words that may stand where the cursor is in a command line of distrun."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import click

from distrun.errors import UsageError
from distrun.runner.command_lines.launch_options import every_launch_option, settings_files
from distrun.runner.command_lines.own_options import OwnOptions, is_flag, own_options_of
from distrun.tools.help.catalogue import COMMANDS, command
from distrun.tools.help.groups import GROUPS

SHELLS = ("bash", "zsh", "fish")
_CONFIG_LINE = re.compile(r"^\s*(host|include)(?:\s*=\s*|\s+)(.*)$", re.IGNORECASE | re.MULTILINE)
_OF_HOSTS = ("-H", "--hosts", "--server-hosts", "--rdzv-endpoint")
_OF_JOBS = ("top", "stop", "logs")
_WITHOUT_A_WORD = ("--auto", "--bootstrap")
"""Options whose value may be left out, so that it is never the next word."""
_MEANING = 70
"""Characters of a meaning that are shown."""


def candidates(words: Sequence[str]) -> Mapping[str, str]:
    """Return the words that may stand in the place of the last one of `words`, which may be empty, with their meanings.

    There are none where a file, a program or a program's argument stands, which shells complete by themselves.
    """
    *before, current = words
    if not before and not current.startswith("-"):
        return _beginning_with(current, COMMANDS)
    if not before or before[0] not in COMMANDS:
        return _in_options(every_launch_option(), before, current)
    name, *before = before
    if not current.startswith("-"):
        if name in _OF_JOBS and not [word for word in before if not word.startswith("-")]:
            return _beginning_with(current, _jobs())
        if not before and name in ("help", "completion"):
            return _beginning_with(current, [*GROUPS, *COMMANDS, "all"] if name == "help" else SHELLS)
    return _in_options(command(name).params, before, current)


def _in_options(parameters: Sequence[click.Parameter], before: Sequence[str], current: str) -> Mapping[str, str]:
    own = own_options_of(parameters)
    rest = list(before)
    while is_flag(rest):
        name, equals, _ = rest.pop(0).partition("=")
        kind = own.get(name, False)
        if equals or not kind or name in _WITHOUT_A_WORD:
            continue
        if not rest:
            return _beginning_with(current, _values(own, name, current))
        del rest[0]
    if rest or not current.startswith("-"):
        return {}
    name, equals, begun = current.partition("=")
    if equals:
        return _beginning_with(current, [f"{name}={value}" for value in _values(own, name, begun)])
    meanings = {
        name: (one.help or "").partition(". ")[0][:_MEANING].rstrip(".")
        for one in parameters
        if isinstance(one, click.Option)
        for name in (*one.opts, *one.secondary_opts)
    }
    return {name: meanings.get(name, "") for name in _beginning_with(current, own)}


def _values(own: OwnOptions, name: str, current: str) -> Collection[str]:
    kind = own.get(name, False)
    if name in _OF_HOSTS:
        listed = current[: current.rfind(",") + 1]
        return [listed + host for host in ("localhost", *_ssh_hosts())]
    if name == "--profile":
        from distrun.runner.command_lines.settings_file import profiles_of

        try:
            return profiles_of(settings_files())
        except UsageError:
            return ["none"]
    return () if isinstance(kind, bool) else kind


def _jobs() -> list[str]:
    from distrun.tools.top.commands import jobs

    return [job.job[:8] for job in jobs()]


def _ssh_hosts() -> Iterator[str]:
    """Yield the hosts of ~/.ssh/config and known_hosts that are no patterns."""
    folder = os.path.expanduser("~/.ssh")
    names = [*_configured(os.path.join(folder, "config"), folder, 4)]
    for line in _text(os.path.join(folder, "known_hosts")).splitlines():
        names += line.partition(" ")[0].split(",")
    return (name for name in names if not set(name) & set('*?!"|@[:#'))


def _configured(path: str, folder: str, depth: int) -> Iterator[str]:
    for keyword, values in _CONFIG_LINE.findall(_text(path)):
        for value in values.split("#")[0].split():
            if keyword.lower() == "host":
                yield value
            elif depth:
                for each in glob.glob(os.path.join(folder, os.path.expanduser(value))):
                    yield from _configured(each, folder, depth - 1)


def _text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _beginning_with(current: str, words: Iterable[str]) -> Mapping[str, str]:
    return dict.fromkeys(sorted({word for word in words if word.startswith(current)}), "")
