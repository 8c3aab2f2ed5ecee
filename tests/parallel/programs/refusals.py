"""Expecting errors in rank programs, which run without pytest."""

from __future__ import annotations

from collections.abc import Callable

import distrun


def refuse(error: type[distrun.DistrunError], text: str, call: Callable[[], object]) -> str:
    """`call` must raise `error` with `text` in its message, which is returned whole."""
    try:
        call()
    except error as raised:
        said = str(raised)
    else:
        raise AssertionError(f"no {error.__name__} was raised, with the text: {text}")
    if text not in said:
        raise AssertionError(f"{text!r} is not in the message {said!r}")
    return said
