"""The commands besides the launch of a job, each with its module, which is imported only if needed."""

from __future__ import annotations

from importlib import import_module

import click

COMMANDS = {
    "doctor": "distrun.tools.doctor.command",
    "ps": "distrun.tools.top.commands",
    "top": "distrun.tools.top.commands",
    "stop": "distrun.tools.top.commands",
    "logs": "distrun.tools.top.logs",
    "sweep": "distrun.tools.sweep.command",
    "predict": "distrun.tools.predict.command",
    "k8s": "distrun.tools.kubernetes.command",
    "agent": "distrun.runner.launch.agent_command",
    "completion": "distrun.tools.completion.command",
    "help": "distrun.tools.help.command",
}


def command(name: str) -> click.Command:
    """Return a command by its name."""
    found: click.Command = getattr(import_module(COMMANDS[name]), name)
    return found
