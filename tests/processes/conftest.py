"""Fixtures for the tests of the launcher: a real `distrun` whose descendants can all be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running_distrun import Distrun, launches


@pytest.fixture
def distrun(tmp_path: Path) -> Iterator[Callable[..., Distrun]]:
    """Starts `distrun` with the given arguments; afterwards nothing is left of it."""
    with launches(tmp_path, ()) as start:
        yield start
