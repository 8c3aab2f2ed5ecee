"""Limits of unit tests: they start no process, import no framework, and may check that no descriptor stays open."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FRAMEWORKS = frozenset({"torch", "tensorflow", "keras", "jax"})
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec", "pty.spawn"})

_watches = False  # an audit hook is for ever, and other tests of the same session may start what they like
_seen: list[str] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if not _watches:
        return
    if event in STARTS:
        _seen.append(f"{event}{arguments!r:.200}")
    elif event == "import" and str(arguments[0]).partition(".")[0] in FRAMEWORKS:
        _seen.append(f"import {arguments[0]}")


sys.addaudithook(_audit)


@pytest.fixture(autouse=True)
def _starts_no_process_and_imports_no_framework() -> Iterator[None]:
    """A test here fails if anything in it did, though the code under test may have caught the error."""
    global _watches
    _seen.clear()
    _watches = True
    yield
    _watches = False
    assert not _seen, f"a unit test starts no process and imports no framework: {_seen}; move it to tests/processes"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Importing the unit tests themselves loads no framework either, where nothing else was collected."""
    arguments = [Path(argument.partition("::")[0]).resolve() for argument in session.config.args]
    if all(Path(__file__).parent in (argument, *argument.parents) for argument in arguments):
        loaded = sorted(FRAMEWORKS & set(sys.modules))
        assert not loaded, f"importing the unit tests has loaded {loaded}"
    gc.collect()
    gc.freeze()  # many tests collect garbage, and need not look for it among all that was there before


@pytest.fixture
def no_descriptors_left() -> Iterator[None]:
    """Whatever a test opens is closed at its end."""
    gc.collect()  # what earlier tests have left in cycles does not go meanwhile
    gc.freeze()
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before, "descriptors are left open"
