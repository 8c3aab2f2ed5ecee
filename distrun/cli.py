"""The command line of `distrun`: it turns options into a request, and an error into one sentence."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from distrun.runner.system.interrupt import ended_by_sigint

with ended_by_sigint():
    import click

    from distrun.errors import DistrunError, UsageError
    from distrun.host.limits import reached_by
    from distrun.runner.command_lines.launch_options import launch_options
    from distrun.runner.command_lines.own_options import are_all_own, misplaced, own_options, with_defaults, with_value
    from distrun.runner.protocol.exits import NOT_FOUND
    from distrun.tools.help import catalogue

if TYPE_CHECKING:
    from distrun.runner.command_lines.table import Translation


_SETTINGS = {"allow_interspersed_args": False, "help_option_names": ["-h", "--help"], "max_content_width": 120}


class _Launch(click.Command):
    """The launch of a job, whose help is a screen of its options; `distrun help all` has the others."""

    def get_help(self, ctx: click.Context) -> str:
        """Return the screen."""
        from distrun.tools.help.screen import screen

        return screen().rstrip("\n")


@click.command(cls=_Launch, context_settings=_SETTINGS, options_metavar="[OPTIONS]")
@launch_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def distrun(context: click.Context, /, **options: Any) -> int:
    """Start COMMAND once per rank and wait until all ranks are done: distrun -np 2 python train.py

    Everything from the first word that is not an option belongs to the command. The exit status is the status of the
    first rank that fails. 'distrun help' shows the other commands, and 'distrun help GROUP' some of the options.
    """
    if options["check_build"]:
        from distrun.tools.doctor.build import report

        click.echo(report(verbose=options["verbose"]))
        return 0
    from distrun.runner.launch.launch import run
    from distrun.runner.planning.python_command import with_interpreter

    if context.obj is not None:  # the settings of a file
        context.obj.complete(context, options)
    command = options["command"] = with_interpreter(options["command"], options["wdir"])
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
        if arguments and arguments[0] in catalogue.COMMANDS:
            status = _run(catalogue.command(arguments[0]), *arguments)
        else:
            status = _run(distrun, "", *arguments)
    except click.ClickException as error:
        return complain(_sentence(error), 2)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except DistrunError as error:
        status = getattr(error, "status", 2 if isinstance(error, UsageError) else 1)
        return complain(_missing(error) if status == NOT_FOUND else str(error), status)
    except (OSError, RuntimeError) as error:  # "can't start new thread" is a RuntimeError
        if (limit := reached_by(1, str(error))) is None:
            raise
        return complain(f"{error}; {limit}", 1)
    return int(status or 0)


def _sentence(error: click.ClickException) -> str:
    """Return what is wrong with the command line, and where to read more or what was probably meant."""
    context = getattr(error, "ctx", None)
    remedy = f"see {context.command_path if context else 'distrun'} --help"
    if isinstance(error, click.NoSuchOption):
        from distrun.runner.command_lines.translate import nearest

        if error.option_name == "--param" and context is not None and context.command_path == "distrun sweep":
            remedy = "a parameter is a word of its own, as in lr=log:1e-4..1e-1"
        meant = nearest(error.option_name, error.possibilities or ())
        return f"there is no option {error.option_name}: {f'did you mean {meant}?' if meant else remedy}"
    return f"{' '.join(error.format_message().split()).rstrip('.')}; {remedy}"


def _missing(error: DistrunError) -> str:
    """Return which program does not exist, and which command of distrun was probably meant by it."""
    from distrun.tools.help.suggestions import suggestion

    command = getattr(error, "command", "")
    meant = suggestion(command)
    return f"command {command!r} not found: did you mean '{meant}'?" if meant not in (None, command) else str(error)


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
    arguments = with_defaults(own, arguments)
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
