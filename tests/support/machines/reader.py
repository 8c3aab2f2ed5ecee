"""A page of commands, typed as a reader would: its files are written, and what it shows must be shown."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from shell import Shell

TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorial.md"

_BLOCK = re.compile(r'^```(python|console)(?: title="(.*?)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)")
_FOLDER, _JOB, _PID = "/home/me/tutorial", "0b6c62f2", "32021"  # on the page
_NEAR = 6.0  # percent by which another processor's rounding may change a result
_DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test
_DISTRUN = (sys.executable, "-m", "distrun.runner")
_BESIDE, _LATER = "another terminal", "the job goes on"


@dataclass(frozen=True)
class Block:
    """A file or a terminal's content below a heading of a page."""

    section: str
    kind: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the Python files and the terminals' contents that a page shows, in order."""
    return [
        Block(section.partition("\n")[0], *block.groups(default=""))
        for section in page.read_text().split("\n## ")[1:]
        for block in _BLOCK.finditer(section)
    ]


def is_like(shown: str, expected: str) -> bool:
    """Whether a line says the same as one of the page: percentages may differ a little, and times."""
    ours, theirs = (_NUMBER.split(" ".join(line.split())) for line in (shown, expected))
    if ours[::2] != theirs[::2]:
        return False
    for place in range(1, len(ours), 2):
        is_time = ":" in (ours[place - 1], ours[place + 1]) or re.match(r" s\b", ours[place + 1])
        most = _NEAR if ours[place + 1].startswith("%") else 0.0
        if not is_time and abs(float(ours[place]) - float(theirs[place])) > most:
            return False
    return True


class Terminal:
    """A shell in the reader's folder, and where its last command's output begins."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._shell = Shell(**environ)
        self._begin = 0
        self.run(f"cd {folder}")

    def run(self, command: str) -> None:
        """Type a command when the one before has ended."""
        assert self._shell.until(self._is_ready, _DEADLINE)
        self._begin = self._shell.type(f"{command}\n")
        self._shell.wait_for("\n", self._begin)

    def wait_for(self, line: str, is_meant: Callable[[str, str], object] = is_like) -> None:
        """Wait until a line like this one is shown."""
        if not self._shell.until(lambda: any(is_meant(each, line) for each in self._lines()), _DEADLINE):
            raise AssertionError("\n".join([f"{line!r} is not shown:", *self._lines()]))

    def processes(self) -> set[int]:
        """Return the process ids of launchers that were started here."""
        return {process.pid for process in self._shell.family("distrun.runner")}

    def press(self, key: str) -> None:
        self._shell.type(key)

    def close(self) -> None:
        """Interrupt what still runs, and leave."""
        try:
            if not self._is_ready():
                self.press("\x03")
            self._shell.until(self._is_ready, _DEADLINE)
        finally:
            self._shell.close()

    def _lines(self) -> list[str]:
        return self._shell.shown[self._begin :].decode(errors="replace").splitlines()

    def _is_ready(self) -> bool:
        return self._shell.shown.endswith(b"$ ")


class Reader:
    """Does in two terminals what a page says.

    Args:
        folder: where its folder is made
        environ: variables of the terminals
        instead: what is called for commands that cannot be typed here
    """

    def __init__(
        self, folder: Path, environ: Mapping[str, str], instead: Mapping[str, Callable[[], object]] | None = None
    ) -> None:
        self._folder = folder / "tutorial"
        self._instead = instead or {}
        programs = folder / "programs"
        for path in (self._folder, programs):
            path.mkdir()
        (programs / "distrun").write_text(f'#!/bin/sh\nexec {shlex.join(_DISTRUN)} "$@"\n')
        (programs / "distrun").chmod(0o755)
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        given = {"PATH": path, "OMP_NUM_THREADS": "1", **environ}
        self._first, self._second = (Terminal(self._folder, given) for _ in range(2))
        self._names = {_FOLDER: str(self._folder)}

    def follow(self, page: Collection[Block], sections: Collection[str]) -> None:
        """Write all files of the page on the way, and type the commands of these sections."""
        assert set(sections) <= {block.section for block in page}
        for block in page:
            if block.kind == "python":
                (self._folder / block.title).write_text(block.text)
            elif block.section in sections:
                self._do(block)

    def _do(self, block: Block) -> None:
        assert block.title in ("", _BESIDE, _LATER)
        terminal = self._second if block.title == _BESIDE else self._first
        for line in block.text.replace("\n    ", " ").splitlines():
            if line.strip() == "...":
                continue
            if not line.startswith("$ "):
                terminal.wait_for(self._named(line))
            elif line[2:] in self._instead:
                self._instead[line[2:]]()
            else:
                if _JOB in block.text:
                    self._names |= self._job()
                terminal.run(self._named(line[2:]))
                if line.startswith("$ distrun top"):
                    self._look(terminal)

    def _look(self, terminal: Terminal) -> None:
        """Wait until `distrun top` knows the ranks' speed, and leave it."""
        terminal.wait_for(r"2 ranks .* \S+ steps/s", lambda shown, pattern: re.search(pattern, shown))
        terminal.press("q")

    def _job(self) -> dict[str, str]:
        """Return what stands for the names of the page's job."""
        listed = subprocess.run([*_DISTRUN, "ps", "--json"], capture_output=True, check=True, text=True)
        ours = self._first.processes()
        (job,) = (job for job in json.loads(listed.stdout) if job["pid"] in ours)
        return {_JOB: job["job"][:8], _PID: str(job["pid"])}

    def _named(self, text: str) -> str:
        for there, here in self._names.items():
            text = text.replace(there, here)
        return text

    def close(self) -> None:
        self._second.close()
        self._first.close()
