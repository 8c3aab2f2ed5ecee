"""Futures are completed, whatever their callbacks do."""

from __future__ import annotations

import math
import os
import threading

import pytest

torch = pytest.importorskip("torch")
from torch.futures import Future  # noqa: E402

from distrun.runtime.operations import waking_clock  # noqa: E402
from distrun.torch_distributed import completion  # noqa: E402

pytestmark = pytest.mark.gate


class Work:
    def __init__(self, seconds: float = math.inf) -> None:
        self.deadline = waking_clock.now() + seconds


def completed(callback=lambda begun: "done"):
    """A future that the thread completes."""
    work, begun = Work(), Future()
    future = begun.then(callback)
    completion.expect(work, begun)
    completion.complete(work)
    return future


def test_a_callback_that_waits_keeps_no_other_waiting():
    other_done = threading.Event()

    def wait(begun):
        assert completion.is_here()
        completion.before_waiting()
        return other_done.wait(60)

    waiting = completed(wait)
    assert completed().wait() == "done"
    other_done.set()
    assert waiting.wait() is True
    assert not completion.is_here()


def test_what_is_due_while_a_callback_waits_is_completed():
    other_done = threading.Event()

    def wait(begun):
        completion.before_waiting()
        return other_done.wait(60)

    futures = []
    for callback in (wait, lambda begun: other_done.set()):
        begun = Future()
        futures.append(begun.then(callback))
        completion.expect(Work(0.05), begun)
    assert futures[0].wait() is True


def test_a_forked_child_completes_futures_of_its_own():
    assert completed().wait() == "done"
    child = os.fork()
    if child == 0:
        done = threading.Event()
        completed(lambda begun: done.set())
        os._exit(0 if done.wait(60) else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
