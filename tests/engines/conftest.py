"""Engines that stay up for the tests of one folder, and not until all tests are over."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

_stacks: dict[Path, ExitStack] = {}


@pytest.fixture(scope="session")
def for_folder() -> Callable[[Path, AbstractContextManager[Any]], Any]:
    """Enters a context that ends after the last test of a folder: an engine takes time from others even if idle."""

    def enter(folder: Path, context: AbstractContextManager[Any]) -> Any:
        return _stacks.setdefault(folder, ExitStack()).enter_context(context)

    return enter


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    for folder in list(_stacks):
        if nextitem is None or folder not in nextitem.path.parents:
            _stacks.pop(folder).close()


def pytest_sessionfinish(session: pytest.Session) -> None:
    for folder in list(_stacks):  # the tests were interrupted
        _stacks.pop(folder).close()
