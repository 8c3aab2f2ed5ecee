"""The words that may stand where the cursor is in a command line of distrun."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence

from distrun.runner.command_lines.launch_options import every_launch_option
from distrun.runner.command_lines.own_options import OwnOptions, is_flag, own_options, own_options_of
from distrun.tools.help.catalogue import COMMANDS, command
from distrun.tools.help.groups import GROUPS

_HOST_LINE = re.compile(r"^\s*host[\s=]+(.*)$", re.IGNORECASE | re.MULTILINE)
_OF_HOSTS = ("-H", "--hosts", "--server-hosts", "--rdzv-endpoint")


def candidates(words: Sequence[str]) -> list[str]:
    """Return the words that may stand in the place of the last one of `words`, which may be empty.

    There are none where a file, a program or a program's argument stands, which shells complete by themselves.
    """
    *before, current = words
    if before and before[0] in COMMANDS:
        return _in_command(own_options(command(before[0])), before, current)
    if not before and not current.startswith("-"):
        return _beginning_with(current, COMMANDS)
    return _in_options(own_options_of(every_launch_option()), before, current)


def _in_command(own: OwnOptions, before: Sequence[str], current: str) -> list[str]:
    match before:
        case ["help"]:
            return _beginning_with(current, [*GROUPS, *COMMANDS, "all"])
        case ["completion"] if not current.startswith("-"):
            return _beginning_with(current, ["bash"])
    return _in_options(own, before[1:], current)


def _in_options(own: OwnOptions, before: Sequence[str], current: str) -> list[str]:
    rest = list(before)
    while is_flag(rest):
        name, equals, _ = rest.pop(0).partition("=")
        kind = own.get(name, False)
        if equals or not kind:
            continue
        if not rest:
            return _values(name, kind, current)
        del rest[0]
    return _beginning_with(current, own) if current.startswith("-") and not rest else []


def _values(name: str, kind: Collection[str] | bool, current: str) -> list[str]:
    if name in _OF_HOSTS:
        listed = current[: current.rfind(",") + 1]
        return _beginning_with(current, [listed + host for host in _ssh_hosts()])
    return [] if isinstance(kind, bool) else _beginning_with(current, kind)


def _ssh_hosts() -> list[str]:
    """Return localhost and the hosts of ~/.ssh/config that are no patterns."""
    try:
        with open(os.path.expanduser("~/.ssh/config"), errors="replace") as file:
            lines = _HOST_LINE.findall(file.read())
    except OSError:
        lines = []
    names = [name for line in lines for name in line.split("#")[0].split()]
    return ["localhost", *(name for name in names if not set(name) & set('*?!"'))]


def _beginning_with(current: str, words: Iterable[str]) -> list[str]:
    return sorted({word for word in words if word.startswith(current)})
