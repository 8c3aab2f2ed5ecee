"""Fixtures for the tests of the launcher: a real `distrun` whose descendants can all be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running_distrun import Distrun, launches, python_command


@pytest.fixture
def distrun(tmp_path: Path) -> Iterator[Callable[..., Distrun]]:
    """Starts `distrun` with the given arguments."""
    with launches(tmp_path) as start:
        yield start


@pytest.fixture
def python() -> Callable[[str], list[str]]:
    """Returns the command of a rank that executes some Python."""
    return python_command


@pytest.fixture
def output(distrun: Callable[..., Distrun]) -> Callable[..., bytes]:
    """Runs `distrun` to its successful end; returns what it has printed."""

    def run(*arguments: str, **environ: str) -> bytes:
        job = distrun(*arguments, **environ)
        assert job.wait() == 0, job.stderr.data
        return job.stdout.data

    return run
