"""The cell magic `%%distrun -np 2`, which `%load_ext distrun` gives to IPython and Jupyter: the cell is a script that
runs on all ranks.
"""

from __future__ import annotations

import codecs
import os
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from distrun.errors import LaunchError, UsageError
from distrun.runner.command_lines.borrowed import translated
from distrun.runner.command_lines.launch_options import every_launch_option
from distrun.runner.command_lines.own_options import own_options_of, with_defaults
from distrun.runner.planning import allocation
from distrun.runner.shipping.delivery import first_folders

_CELL = "cell.py"
_CHUNK = 1 << 16
_LAUNCH = "from distrun.host.forks import die_with_parent; die_with_parent({}); from distrun.cli import main; main()"
"""The program of the launcher, which ends with the kernel, even if that is killed."""

_HOSTS = {"-H", "--hosts", "-hostfile", "--hostfile", "--hosts-from"}
_WITHOUT_SHIPPING = {"mpirun", "--launcher=mpirun", "--nnodes"}


class CellError(LaunchError):
    """A cell could not run, or its job failed."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows instead of a traceback: the user has called none of the functions in it."""
        return [f"distrun: {self}"]


def load_ipython_extension(shell: Any) -> None:
    """Add the magic to the shell of IPython that has called `%load_ext distrun`."""
    shell.register_magic_function(run_cell, "cell", "distrun")


def run_cell(line: str, cell: str) -> None:
    """Run a cell as a script on all ranks, and show what they print while they run.

    Args:
        line: the rest of the magic's line: options of `distrun`, and after `--` the arguments of the script.
        cell: the script.

    Raises:
        CellError: the options are not valid, or the job has failed.
        SyntaxError: the cell is no Python program.
        KeyboardInterrupt: the kernel was interrupted. The ranks have ended.
    """
    try:
        before, _, after = f" {line} ".partition(" -- ")
        options, arguments = shlex.split(before), shlex.split(after)
        own = own_options_of(every_launch_option())
        understood = translated(own, with_defaults(own, [*options, _CELL]), "%%distrun")
        named = {word.partition("=")[0] for word in understood.options}
        has_hosts = bool(named & _HOSTS) or allocation.current(os.environ) is not None
    except (UsageError, ValueError) as error:
        raise CellError(f"%%distrun {line}: {error}") from None
    if understood.command != (_CELL,):
        raise CellError(
            f"%%distrun {line}: the cell is the script, and {understood.command[0]!r} is no option of distrun: give "
            "options, and arguments of the script after --, as in %%distrun -np 2 -- --epochs 3"
        )
    compile(cell, "<the cell>", "exec")
    with tempfile.TemporaryDirectory(prefix="distrun-") as folder:
        script = Path(folder, _CELL)
        script.write_text(cell, encoding="utf-8")
        python = sys.executable
        if has_hosts:
            python = "python3"  # which other hosts may have elsewhere
            if not _WITHOUT_SHIPPING & {*understood.options, *named}:
                options += ["--ship", folder]
        status = _run([*options, python, str(script), *arguments])
    if status:
        raise CellError(f"the job of this cell ended with exit status {status}")


def _run(words: list[str]) -> int:
    """Run `distrun` with these words, and return its exit status."""
    # So that modules beside the notebook are found, although the script is elsewhere, and the kernel's Python by name.
    first = {"PYTHONPATH": [os.getcwd(), *first_folders()], "PATH": [os.path.dirname(sys.executable)]}
    environ = {name: os.pathsep.join(filter(None, (*folders, os.environ.get(name)))) for name, folders in first.items()}
    launcher = subprocess.Popen(
        [sys.executable, "-c", _LAUNCH.format(os.getpid()), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environ},
        start_new_session=True,  # an interrupt that Jupyter sends to the kernel's processes must not come twice
    )
    with launcher:
        try:
            was_interrupted = _show(launcher)
            status = launcher.wait()
        finally:
            launcher.terminate()
    if was_interrupted:
        raise KeyboardInterrupt
    return status


def _show(launcher: subprocess.Popen[bytes]) -> bool:
    """Show what the launcher prints until it ends, and pass interrupts on to it. Return whether there were any."""
    was_interrupted = False
    decoder = codecs.getincrementaldecoder("utf-8")
    with selectors.DefaultSelector() as selector:
        for stream, shown in ((launcher.stdout, sys.stdout), (launcher.stderr, sys.stderr)):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, (decoder("backslashreplace"), shown))
        while selector.get_map():
            try:
                for key, _ in selector.select():
                    data = os.read(key.fd, _CHUNK)
                    decode, shown = key.data
                    shown.write(decode.decode(data, not data))
                    shown.flush()
                    if not data:
                        selector.unregister(key.fileobj)
            except KeyboardInterrupt:
                was_interrupted = True
                launcher.send_signal(signal.SIGINT)
    return was_interrupted
