"""A rank that runs one rank program after another, in the interpreter and with the libraries that it already has.

The test that started it asks for programs over a Unix socket, whose path is the first argument. Each program finds what
a script of its own would find: no world yet, its own arguments and variables, and its folder on the path; also the
folder `programs` that its folder lies in.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path

import distrun


def main(address: str) -> None:
    """Serve until the test closes the connection."""
    with socket.socket(socket.AF_UNIX) as connection, Path(address).with_name("stacks").open("a") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks)
        connection.connect(address)
        with connection.makefile("rw") as stream:
            for line in stream:
                stream.write(json.dumps(run(**json.loads(line))) + "\n")
                stream.flush()


def run(program: str, arguments: list[str], environ: dict[str, str]) -> dict[str, str]:
    """Run a program as a script; what it printed, and the traceback or exit status with which it failed, if it did."""
    argv, path, before = sys.argv, list(sys.path), dict(os.environ)
    os.environ.update(environ)
    sys.argv = [program, *arguments]
    folders = program_folders(Path(program))
    sys.path[:0] = map(str, folders)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        error = _error_of(program)
        left = _error_of_leaving()
    sys.argv, sys.path[:] = argv, path
    os.environ.clear()
    os.environ.update(before)
    _forget(folders)
    return {"printed": printed.getvalue(), "error": error or left}


def program_folders(program: Path) -> list[Path]:
    """Return the folder of a program, and the folder `programs` if that is its parent: what a program may import."""
    folder = program.parent
    return [folder, folder.parent] if folder.parent.name == "programs" else [folder]


def _error_of(program: str) -> str:
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        return f"exit status {end.code}" if end.code else ""
    except BaseException:
        return traceback.format_exc()
    return ""


def _error_of_leaving() -> str:
    try:
        distrun.shutdown()
    except Exception:
        return traceback.format_exc()
    return ""


def _forget(folders: list[Path]) -> None:
    """Unload the modules that a program has found in its own folders: other folders may have some of the same names."""
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").parent in folders:
            del sys.modules[name]
    gc.collect()


if __name__ == "__main__":
    main(sys.argv[1])
