"""The options of a launch as keyword arguments of `distrun.run`: `output_dir="logs"` is `--output-dir logs`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from distrun.errors import UsageError
from distrun.runner.command_lines.launch_options import every_launch_option
from distrun.runner.command_lines.translate import nearest

_FOR_COMMANDS = (
    *("auto", "check_build", "dry_run", "launcher", "mpi_args", "ps", "quiet", "stdin", "version"),
    *("nnodes", "nproc_per_node", "node_rank", "rdzv_endpoint", "rdzv_id", "rdzv_conf"),
)
"""Options that a function has no use for, or that concern a launcher on each node."""

# Sentences about the command line: "-np 3 asks for more ranks than", "--hosts-from 'a b' cannot be executed".
_OPTION = re.compile(r"(?<![\w-])(?<!distrun doctor )(--?[a-zA-Z][a-z-]*)(?: (\d[\d.]*|'[^']*'))?")


class Keywords:
    """The keywords and the options that they stand for."""

    def __init__(self) -> None:
        self._options = every_launch_option()
        offered = [each for each in self._options if each.expose_value and each.name not in _FOR_COMMANDS]
        self._of_spelling = {spelling: each for each in offered for spelling in each.opts}
        self._of_keyword = {_keyword(spelling): each for spelling, each in self._of_spelling.items()}

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of the command line that has what is given. None stands for an option's default.

        Raises:
            TypeError: there is no such keyword.
            UsageError: a value is not allowed.
        """
        words = []
        for name, value in given.items():
            if name not in self._of_keyword:
                raise TypeError(f"distrun.run has no argument {name!r}: {self._remedy(name)}")
            words += [] if value is None else _words(self._of_keyword[name], value)
        command = click.Command("distrun.run", params=[*self._options])
        try:
            return command.make_context("distrun.run", words).params
        except click.BadParameter as error:
            wrong = next(name for name in given if self._of_keyword[name] is error.param)
            raise UsageError(f"{wrong}={given[wrong]!r} is not allowed: {error.message.rstrip('.')}") from None

    def _remedy(self, name: str) -> str:
        if name in _FOR_COMMANDS:
            return "the option of that name is for commands, so leave it out"
        near = nearest(name, self._of_keyword)
        return f"did you mean {near}?" if near else "see help(distrun.run)"

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Replace options in the text of errors by keywords."""
        try:
            yield
        except UsageError as error:
            raise UsageError(_OPTION.sub(self._as_keyword, str(error))) from None

    def _as_keyword(self, match: re.Match[str]) -> str:
        """Return `np=3` for `-np 3` and `np` for `-np`. Options without a keyword stay."""
        option = self._of_spelling.get(match[1])
        if option is None:
            return match[0]
        value = "True" if option.is_flag else match[2]
        name = "env" if match[1] == "-x" else _keyword(match[1] if len(match[1]) > 2 else max(option.opts, key=len))
        return name if value is None else f"{name}={value}"


def _keyword(spelling: str) -> str:
    return spelling.lstrip("-").replace("-", "_")


def _words(option: click.Option, value: Any) -> list[str]:
    """Return the words that give an option a value. A sequence is several values, or one with commas."""
    spelling = max(option.opts, key=len)
    if option.is_flag:
        return [spelling] if value else option.secondary_opts[:1]
    if value is False:
        return []
    values = [value] if isinstance(value, str) or not option.multiple else value
    return [f"{spelling}={_text(each)}" for each in values]


def _text(value: Any) -> str:
    if value is True:  # the option's name alone
        return ""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
