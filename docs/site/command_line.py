"""The command lines as pages in Markdown: all options of each command, and the tables of other launchers."""

from __future__ import annotations

import html
import inspect
import re

import click

from distrun.cli import distrun
from distrun.runner.command_lines.programs import program, rows as flags_of
from distrun.runner.launch.agent_command import agent
from distrun.tools.completion.command import completion
from distrun.tools.doctor.command import doctor
from distrun.tools.help.command import help
from distrun.tools.kubernetes.command import k8s
from distrun.tools.predict.command import predict
from distrun.tools.sweep.command import sweep
from distrun.tools.top.commands import ps, stop, top
from distrun.tools.top.logs import logs

COMMANDS = {
    "distrun": distrun,
    "distrun doctor": doctor,
    "distrun agent": agent,
    "distrun k8s": k8s,
    "distrun predict": predict,
    "distrun sweep": sweep,
    "distrun ps": ps,
    "distrun top": top,
    "distrun stop": stop,
    "distrun logs": logs,
    "distrun completion": completion,
    "distrun help": help,
}
LINE = re.compile(r"^::: (?P<command>distrun[ \w]*) --help$", re.MULTILINE)
TABLE = re.compile(r"^::: distrun-compat (?P<program>\w+)$", re.MULTILINE)


def expanded(text: str) -> str:
    """The text of a page with its lines `::: COMMAND --help` and `::: distrun-compat PROGRAM` expanded."""
    return TABLE.sub(lambda line: table(line["program"]), LINE.sub(lambda line: described(line["command"]), text))


def table(name: str) -> str:
    """The flags of another launcher, and what becomes of each."""
    lines = [f"| `{flag}` | {plain(effect)} |" for flag, effect in flags_of(program(name))]
    return "\n".join(["| flag | becomes |", "| --- | --- |", *lines])


def described(name: str) -> str:
    """A command's usage, its description and a table of its options."""
    command = COMMANDS[name]
    # With its settings: click keeps the help option of the first context, and so whether -h is one of its names.
    context = click.Context(command, info_name=name, **command.context_settings)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    records = [record for option in command.get_params(context) if (record := option.get_help_record(context))]
    rows = [f"| `{names}` | {plain(meaning)} |" for names, meaning in records]
    description = plain(inspect.cleandoc(command.help or ""))
    return "\n".join(["```", usage, "```", "", description, "", "| option | meaning |", "| --- | --- |", *rows])


def plain(text: str) -> str:
    """Text in which nothing is Markdown."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(text, quote=False))
