"""A session of tests leaves nothing behind: no process, no temporary file, no shared memory. It fails if it does."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path

import psutil
import pytest

SETTLE_TIMEOUT = 120.0  # seconds in which the last processes may still go; far more than that takes
SHARED_MEMORY = Path("/dev/shm")
OTHERS = (
    *("ompi.", "prte.", "sm_segment."),  # what Open MPI itself leaves when its ranks are killed
    "torchinductor_",  # where torch keeps the headers that it has compiled, whatever TORCHINDUCTOR_CACHE_DIR says
)


class Leftovers:
    """Gives everything that tests start a mark and a temporary folder, and looks at the end what is left of it."""

    def __init__(self) -> None:
        self._mark = f"TEST_SESSION={secrets.token_hex(8)}"
        self._folder = Path(tempfile.mkdtemp(prefix="distrun-tests-"))  # this process itself keeps to its own
        self._before = self._shared_memory()
        self._complaint = ""
        kept = f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"  # a cache that is meant to stay
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", kept)
        # Not /dev/shm, where nobody could tell this session's files of Open MPI from those of others.
        shared = {"OMPI_MCA_btl_sm_backing_directory": str(self._folder)}
        os.environ.update([self._mark.split("=")], TMPDIR=str(self._folder), **shared)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        deadline = time.monotonic() + SETTLE_TIMEOUT
        while (found := self._found()) and time.monotonic() < deadline:
            psutil.wait_procs(self._processes(), timeout=0.2)
        if found:
            self._complaint = "the tests have left something behind: " + ", ".join(found)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        shutil.rmtree(self._folder, ignore_errors=True)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._complaint:
            terminalreporter.write_line(self._complaint, red=True, bold=True)

    def _found(self) -> list[str]:
        return [
            *(f"process {process.pid} ({_name(process)})" for process in self._processes()),
            *sorted(str(path) for path in self._folder.iterdir() if not _is_others(path)),
            *sorted(str(SHARED_MEMORY / name) for name in self._shared_memory() - self._before),
        ]

    def _processes(self) -> list[psutil.Process]:
        """The living processes that were started in this session."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self._mark.encode() in path.read_bytes().split(b"\0"):
                    found.append(psutil.Process(int(path.parent.name)))
            except (OSError, psutil.Error):
                continue  # it has ended meanwhile, or is another user's
        return found

    def _shared_memory(self) -> set[str]:
        return {path.name for path in SHARED_MEMORY.iterdir() if "distrun" in path.name}


def _is_others(path: Path) -> bool:
    """Whether other software leaves this, and not what is tested."""
    if path.name == "__pycache__":  # TensorFlow writes modules and imports them, and deletes only their sources
        return all(entry.name.startswith("__autograph_generated_file") for entry in path.iterdir())
    return path.name.startswith(OTHERS)


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return "gone"
