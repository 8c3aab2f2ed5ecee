"""A virtual environment on a host for the ranks of jobs with `--bootstrap`, made once per set of requirements."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

from distrun.host.forks import die_with_parent
from distrun.runner.shipping.cache import touch
from distrun.runner.shipping.first_stage import Launcher

_COMPLETE = ".complete"
_LAST_LINES = 4
_LONGEST = 600  # characters of pip's output
_PER_STEP = 1.0  # seconds between two progress reports to the launcher
_INTERPRETER = "import os, sys; sys.path = {path!r} + [p for p in sys.path if p]; import runpy; "
_INTERPRETER += "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


class _FailedError(Exception):
    """A program failed. The text is the end of its output."""


def make(launcher: Launcher, cache: str, requirements: list[str], beneath: Sequence[str] = ()) -> str:
    """Return the Python of the environment with these requirements. The environment is made if it does not exist.

    If several launches need it, one makes it and the others wait. If the launcher is gone, the process exits.

    Args:
        launcher: gets the progress, and the reason of a failure.
        cache: the host's cache.
        requirements: the lines of a requirements file.
        beneath: folders of installed packages that the environment also sees, after its own.
    """
    shelf = os.path.join(cache, "environments")
    os.makedirs(shelf, mode=0o700, exist_ok=True)
    place = os.path.join(shelf, identity([*requirements, *beneath]))
    python = os.path.join(place, "bin", "python")
    with open(f"{place}.lock", "ab") as lock:
        _wait_for(launcher, lock.fileno())
        if not (os.path.exists(os.path.join(place, _COMPLETE)) and os.access(python, os.X_OK)):
            shutil.rmtree(place, ignore_errors=True)
            try:
                _create(launcher, place)
                _see(place, beneath)
                _install(launcher, place, requirements)
            except _FailedError as error:
                shutil.rmtree(place, ignore_errors=True)
                elsewhere = "; make room there, or set XDG_CACHE_HOME there to a folder elsewhere"
                remedy = elsewhere if os.strerror(errno.ENOSPC) in str(error) else ""
                launcher.refuse(f"the environment of --bootstrap cannot be made with {sys.executable}: {error}{remedy}")
            with open(os.path.join(place, _COMPLETE), "w") as file:
                file.write("\n".join(requirements))
        touch(place)
    return python


def identity(requirements: list[str]) -> str:
    """Return the name of the environment with these requirements for the Python that runs this process."""
    what = [sorted(requirements), sys.version, os.path.realpath(sys.executable), os.uname().machine]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def go_on_in(python: str, path: list[str], module: str) -> NoReturn:
    """Replace this process by the environment's Python, which runs a module of distrun, found in `path`."""
    os.execv(python, [python, "-c", _INTERPRETER.format(path=path), module])


def _wait_for(launcher: Launcher, lock: int) -> None:
    """Lock the environment, and wait while another launch makes it."""
    told = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not told:
                launcher.tell(step="waiting for another launch that makes the same environment")
                told = True
            if _launcher_is_gone(0.2):
                sys.exit(1)


def _create(launcher: Launcher, place: str) -> None:
    launcher.tell(step="making an environment")
    try:
        _run(launcher, [sys.executable, "-m", "venv", place])
    except _FailedError as error:
        if "ensurepip" not in str(error):
            raise
        # Debian's Python without python3-venv: install with the host's own pip, or with uv.
        shutil.rmtree(place, ignore_errors=True)
        _run(launcher, [sys.executable, "-m", "venv", "--without-pip", place])


def _see(place: str, beneath: Sequence[str]) -> None:
    """Let an environment see packages in other folders. Unlike with --system-site-packages, they may belong to another
    environment.
    """
    site = os.path.join(place, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
    if beneath:
        with open(os.path.join(site, "beneath.pth"), "w") as file:
            file.writelines(f"import site; site.addsitedir({folder!r})\n" for folder in beneath)


def _install(launcher: Launcher, place: str, requirements: list[str]) -> None:
    file = os.path.join(place, "requirements.txt")
    with open(file, "w") as text:
        text.write("\n".join(requirements) + "\n")
    python = os.path.join(place, "bin", "python")
    named = [line for line in requirements if not line.startswith("-")]
    launcher.tell(step=hidden(f"installing {', '.join(named)}"))
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    if os.path.exists(os.path.join(place, "bin", "pip")):
        _run(launcher, [python, "-m", "pip", "install", *quiet, "-r", file])
    elif (uv := shutil.which("uv")) is not None:
        _run(launcher, [uv, "pip", "install", "--python", python, "-r", file])
    else:
        try:
            _run(launcher, [sys.executable, "-m", "pip", "--python", python, "install", *quiet, "-r", file])
        except _FailedError as error:
            if "No module named pip" not in str(error):
                raise
            raise _FailedError(
                "there is no pip, no ensurepip and no uv there; install one of them, as in 'apt-get install "
                "python3-venv'"
            ) from None


def _run(launcher: Launcher, command: list[str]) -> None:
    """Run a program. It is killed when the launcher is gone or this process ends. Raises _FailedError."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        preexec_fn=partial(die_with_parent, os.getpid()),
        start_new_session=True,
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    said, told = b"", 0.0
    while True:
        if _launcher_is_gone(0.1, process.stdout.fileno()):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            sys.exit(1)
        piece = process.stdout.read()
        if piece == b"":
            break
        said = (said + (piece or b""))[-(1 << 16) :]
        if piece and time.monotonic() - told > _PER_STEP:
            told = time.monotonic()
            whole = said.rpartition(b"\n")[0]  # secrets are found in whole lines only
            launcher.tell(step=hidden(whole.decode(errors="replace").strip().rpartition("\n")[2])[:200])
    process.stdout.close()
    if process.wait() != 0:
        raise _FailedError(_end_of(said.decode(errors="replace")))


def _end_of(said: str) -> str:
    """Return the reason of a program's failure from its output, in one line."""
    lines = [line.strip() for line in hidden(said).splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith(("ERROR: ", "error: "))]
    return "; ".join((errors or lines)[-_LAST_LINES:])[-_LONGEST:] or "it wrote nothing"


def hidden(text: str) -> str:
    """Return `text` with users and passwords in URLs replaced."""
    return re.sub(r"//[^/\s]+@", "//***@", text)


def _launcher_is_gone(timeout: float, output: int | None = None) -> bool:
    """Wait for `timeout` seconds, or until a program has output. Returns whether the other end of stdin is closed."""
    poll = select.poll()
    poll.register(0, select.POLLRDHUP)  # not POLLIN, as input from the launcher may stay unread for long
    if output is not None:
        poll.register(output, select.POLLIN)
    return any(descriptor == 0 for descriptor, _ in poll.poll(timeout * 1000))
