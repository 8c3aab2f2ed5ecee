"""The record of a process's calls to the simulated GPU, and of its violations."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from typing import Any, NamedTuple

from simulator.errors import Violation

_STATUS = 97  # of a process that ends with violations
_KEPT = 200_000  # calls


class Call(NamedTuple):
    thread: str
    stream: int | None
    name: str
    details: dict[str, Any]


_calls: deque[Call] = deque(maxlen=_KEPT)
_violations: list[str] = []
_unraised: list[str] = []


def record(name: str, stream: int | None = None, **details: Any) -> None:
    """Record a call of the API; every call begins with this.

    Raises:
        Violation: something since the last call was wrong.
    """
    _calls.append(Call(threading.current_thread().name, stream, name, details))
    if _unraised:
        texts = "; ".join(_unraised)
        _unraised.clear()
        raise Violation(texts)


def log() -> list[Call]:
    """Return the calls of this process so far."""
    return list(_calls)


def violate(text: str) -> None:
    """Report a violation: at once on stderr, by an exception of the next call, and by the exit status."""
    line = f"simulated GPU: violation in process {os.getpid()}, thread {threading.current_thread().name}: {text}"
    print(line, file=sys.stderr, flush=True)
    _violations.append(text)
    _unraised.append(text)


def violations(clear: bool = False) -> list[str]:
    """Return all violations so far. With `clear` they are forgotten: neither the next call nor the process fails."""
    found = list(_violations)
    if clear:
        _violations.clear()
        _unraised.clear()
    return found


@atexit.register
def _fail() -> None:
    if _violations:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_STATUS)
