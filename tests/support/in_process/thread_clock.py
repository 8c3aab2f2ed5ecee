"""A clock that tells each thread its own time, so that a test decides when the time of one of them is over."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from distrun.host.connections import dialer
from distrun.runner.hosts.joining import listener as join_listener
from distrun.runner.hosts.nodes import rendezvous as nodes_rendezvous
from distrun.runtime.transport.rendezvous import at_host, server

_FAR = 1e6  # seconds


class ThreadClock:
    """Stands for the module `time` where others are waited for, and knows which threads have dialled in vain."""

    def __init__(self) -> None:
        self.failed: set[threading.Thread] = set()
        """The threads of which an attempt to connect has failed."""
        self.refused: set[threading.Thread] = set()
        """The threads of which one has failed because the two sides do not know the same key."""
        self._over: set[threading.Thread] = set()

    def monotonic(self) -> float:
        return time.monotonic() + (_FAR if threading.current_thread() in self._over else 0.0)

    def end_for(self, *threads: threading.Thread) -> None:
        """Let the time be over for these threads."""
        self._over.update(threads)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ThreadClock:
    """The clock of all that rendezvous and dial in this test."""
    clock = ThreadClock()
    failed = dialer._Dialer._failed

    def note(self: Any, target: Any) -> None:
        clock.failed.add(threading.current_thread())
        if target.is_refused:
            clock.refused.add(threading.current_thread())
        failed(self, target)

    monkeypatch.setattr(dialer._Dialer, "_failed", note)
    for module in (dialer, at_host, server, nodes_rendezvous, join_listener):
        monkeypatch.setattr(module, "time", clock)
    return clock
