"""What the tests of the runtime share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_descriptors_left() -> Iterator[None]:
    """Whatever a test opens is closed at its end."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before, "descriptors are left open"
