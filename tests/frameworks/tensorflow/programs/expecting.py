"""Expecting errors, in rank programs: their folders have links to this file, since scripts find no other folder's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raises(kind: type[BaseException] | tuple[type[BaseException], ...], *parts: str) -> Iterator[None]:
    """Expect an exception whose text contains `parts`."""
    try:
        yield
    except kind as error:
        missing = [part for part in parts if part not in str(error)]
        if missing:
            raise AssertionError(f"{missing} is not in {str(error)!r}") from error
    else:
        raise AssertionError(f"no {kind} was raised")
