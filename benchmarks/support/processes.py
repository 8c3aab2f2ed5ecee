"""Child processes: each with a deadline, and ended together with everything it started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
GRACE = 5.0
"""Seconds between asking processes to end and ending them."""


class ProcessError(Exception):
    """A program is missing, failed or took too long; the text says which."""


def find(name: str, remedy: str, path: str | None = None) -> str:
    """Return the program `name` of this Python's environment, else the one on the PATH, or on another `path`.

    Raises:
        ProcessError: there is none.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name, path=path)
    if found is None:
        raise ProcessError(f"there is no {name} beside {sys.executable} nor on the PATH: {remedy}")
    return found


@dataclass(frozen=True)
class Finished:
    """The duration and the output of a command that has ended."""

    seconds: float
    output: str


def run(command: Sequence[str], environ: Mapping[str, str], deadline: float) -> Finished:
    """Run a command to its end.

    Raises:
        ProcessError: its exit status was not 0, or `deadline` seconds were not enough.
    """
    begun = time.perf_counter()
    child = subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a Ctrl-C is for us: we end the child, in order
        preexec_fn=end_with_parent,
    )
    try:
        output, _ = child.communicate(timeout=deadline)
    except subprocess.TimeoutExpired as error:
        output = _end(child)
        raise ProcessError(f"{_title(command)} was not done after {deadline:.0f} s:\n{_last_lines(output)}") from error
    finally:  # also when interrupted
        if child.returncode is None:
            _end(child)
    took = time.perf_counter() - begun
    if child.returncode:
        raise ProcessError(f"{_title(command)} ended with status {child.returncode}:\n{_last_lines(output)}")
    return Finished(took, output)


def _last_lines(output: str) -> str:
    """Return the end of the output, enough for the stacks of two ranks."""
    return "\n".join(output.strip().splitlines()[-100:])


def end_with_parent() -> None:
    """Have the kernel send SIGTERM to this child when its parent is gone, even if that was killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _title(command: Sequence[str]) -> str:
    return " ".join(Path(word).name if "/" in word else word for word in command)


def _end(child: subprocess.Popen[str]) -> str:
    """End a child and its children; return what it has written.

    Launchers end their ranks when asked to; those that do not are ended with them. Ranks have groups of their own.
    """
    end_family(psutil.Process(child.pid))
    output, _ = child.communicate()
    return output or ""


def end_family(process: psutil.Process) -> None:
    """End a process and its children, if it has not ended; it is collected by whoever has started it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [process, *process.children(recursive=True)]
        process.terminate()
        _, alive = psutil.wait_procs(family, GRACE)
        for each in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
