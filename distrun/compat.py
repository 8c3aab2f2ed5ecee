"""`distrun-compat PROGRAM ...`: starts the job of a horovodrun, mpirun, mpiexec or torchrun command line with distrun.

Called through a link with the name of such a program, it acts as that program.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from distrun.runner.system.interrupt import ended_by_sigint

with ended_by_sigint():
    import click

    from distrun import cli
    from distrun.errors import UsageError
    from distrun.runner.command_lines.programs import NAMES, described, program
    from distrun.runner.command_lines.translate import translate

_USAGE = f"""\
Usage: distrun-compat {"|".join(NAMES)} ARGUMENTS...

Start the job of another launcher's command line with distrun: distrun-compat mpirun -n 2 python train.py

A link to distrun-compat with the name of such a program is enough: called through it, the name is left out.
'distrun-compat PROGRAM --help' lists the flags that are understood, and what each becomes."""


def main() -> NoReturn:
    """Run the `distrun-compat` command. The exit status is the job's."""
    try:
        _start_job()
    except KeyboardInterrupt:
        sys.exit(130)


def _start_job() -> NoReturn:
    name, *words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
    if name not in NAMES:
        if not words or words[0] in ("-h", "--help"):
            click.echo(_USAGE)
            sys.exit(0 if words else 2)
        name, *words = words
    try:
        if words[:1] in (["-h"], ["-help"], ["--help"]):
            click.echo(described(program(name)), nl=False)
            sys.exit(0)
        translation = translate(program(name), words, os.environ)
    except UsageError as error:
        sys.exit(cli.complain(str(error), 2))
    cli.tell_ignored(translation)
    cli.main(["--profile", "none", *translation.arguments])  # such a line is complete


if __name__ == "__main__":
    main()
