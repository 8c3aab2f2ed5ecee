"""The command line of `distrun`: it turns options into a request, and an error into one sentence."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from distrun.runner.system.interrupt import ended_by_sigint

with ended_by_sigint():
    import click

    from distrun.errors import DistrunError, UsageError
    from distrun.runner.command_lines.launch_options import launch_options
    from distrun.runner.command_lines.own_options import are_all_own, misplaced, own_options, with_value

if TYPE_CHECKING:
    from distrun.runner.command_lines.table import Translation


_SETTINGS = {"allow_interspersed_args": False, "help_option_names": ["-h", "--help"], "max_content_width": 120}
# The modules of the other commands, each of which has a function with its name. They are imported only if needed.
_COMMANDS = {
    "doctor": "distrun.tools.doctor.command",
    "predict": "distrun.tools.predict.command",
    "agent": "distrun.runner.launch.agent_command",
    "sweep": "distrun.tools.sweep.command",
    "k8s": "distrun.tools.kubernetes.command",
    "ps": "distrun.tools.top.commands",
    "top": "distrun.tools.top.commands",
}


@click.command(context_settings=_SETTINGS, options_metavar="[OPTIONS]")
@launch_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def distrun(**options: Any) -> int:
    """Start COMMAND once per rank and wait until all ranks are done: distrun -np 2 python train.py

    Everything from the first word that is not an option belongs to the command. The exit status is the status of the
    first rank that fails. 'distrun doctor -H a,b' examines hosts and the network between them: see distrun doctor
    --help. 'distrun predict FILE' estimates how fast a job that has run would be on more hosts: see distrun predict
    --help. 'distrun sweep' tries a command with many values of its parameters: see distrun sweep --help.
    """
    if options["version"]:
        from distrun import __version__

        click.echo(f"distrun {__version__}")
        return 0
    if options["check_build"]:
        from distrun.tools.doctor.build import report

        click.echo(report(verbose=options["verbose"]))
        return 0
    from distrun.runner.launch.launch import run

    command = options["command"]
    for word in [] if options["quiet"] else misplaced(own_options(distrun), command, options["wdir"]):
        click.echo(f"distrun: {word} stands after the command, which gets it; options of distrun come before", err=True)
    return run(options)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the `distrun` command. The exit status is the job's."""
    try:
        _open_standard_descriptors()
        status = _status(arguments)
    except KeyboardInterrupt:  # it came outside the code that handles it
        status = 130
    sys.exit(status)


def _open_standard_descriptors() -> None:
    """Open the descriptors 0, 1 and 2 if a daemon has started this process without them: pipes must not get them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _status(arguments: list[str] | None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments and (module := _COMMANDS.get(arguments[0])) is not None:
            status = _run(getattr(import_module(module), arguments[0]), *arguments)
        else:
            status = _run(distrun, "", *arguments)
    except click.ClickException as error:
        return complain(_sentence(error), 2)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except DistrunError as error:
        return complain(str(error), getattr(error, "status", 2 if isinstance(error, UsageError) else 1))
    return int(status or 0)


def _sentence(error: click.ClickException) -> str:
    """Return what is wrong with the command line, and where to read more or what was probably meant."""
    context = getattr(error, "ctx", None)
    remedy = f"see {context.command_path if context else 'distrun'} --help"
    if isinstance(error, click.NoSuchOption):
        meant = " or ".join(sorted(error.possibilities or ()))
        return f"there is no option {error.option_name}: {f'did you mean {meant}?' if meant else remedy}"
    return f"{error.format_message().rstrip('.')}; {remedy}"


def complain(sentence: str, status: int) -> int:
    """Print an error on one line, and return the status."""
    click.echo(f"distrun: error: {sentence}", err=True)
    return status


def _run(command: click.Command, name: str, *words: str) -> Any:
    """Run `distrun NAME`, or `distrun` itself, and return its status."""
    called, arguments = f"distrun {name}".strip(), list(words)
    if name in ("", "doctor"):
        arguments = _with_own_options(command, called, arguments)
    elif name == "sweep" and "--bootstrap" in arguments:
        arguments = with_value(own_options(command), arguments, "--bootstrap", "")
    return command.main(args=arguments, prog_name=called, standalone_mode=False)


def _with_own_options(command: click.Command, name: str, arguments: list[str]) -> list[str]:
    """Return the arguments of a command with distrun's options in place of other launchers' flags."""
    own = own_options(command)
    if "--auto" in arguments:
        arguments = with_value(own, arguments, "--auto", "global")
    if "--bootstrap" in arguments:
        arguments = with_value(own, arguments, "--bootstrap", "")
    if are_all_own(own, arguments):
        return arguments
    from distrun.runner.command_lines.borrowed import translated

    translation = translated(own, arguments, name)
    tell_ignored(translation)
    return translation.arguments


def tell_ignored(translation: Translation) -> None:
    """Print which flags of another launcher were ignored, if any, and why."""
    if (description := translation.description()) and not {"-q", "--quiet"} & set(translation.options):
        click.echo(f"distrun: {description}", err=True)
