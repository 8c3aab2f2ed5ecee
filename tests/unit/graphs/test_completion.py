"""Operations completed by a thread of ours, on an engine that does what the test says."""

import threading
from queue import SimpleQueue

import numpy as np
import pytest

from distrun.errors import MismatchError, UsageError
from distrun.graphs.completion import CompletionThread
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request

SETTLE_TIMEOUT = 60.0


class Engine:
    """Operations are done when the test says so."""

    def __init__(self):
        self.changed = threading.Condition()
        self.begun = []

    def handle(self, name):
        request = Request("allreduce", name, "float32", ((1,),), "sum", -1, 1.0, 1.0, 0, "cpu", "")
        return Handle(self, request, [np.ones(1)])

    def run(self, handle):
        if handle.request.name == "taken":
            raise UsageError("it is under way already")
        self.begun.append(handle.request.name)
        return handle

    def wait(self, awaited):
        with self.changed:
            assert self.changed.wait_for(lambda: awaited.done, SETTLE_TIMEOUT)

    def error_reported(self):
        pass

    def end(self, handle, error=None):
        with self.changed:
            handle.error, handle.done = error, True
            self.changed.notify_all()


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def ended():
    """The names of what has been finished, in order, with the errors."""
    return SimpleQueue()


def start(thread, ended, name, handles):
    def operations():
        yield from handles

    thread.start(operations(), lambda error: ended.put((name, error)))


def test_what_is_done_first_is_finished_first(engine, ended):
    thread = CompletionThread()
    handles = [engine.handle(name) for name in "abc"]
    for handle in handles:
        start(thread, ended, handle.request.name, [handle])
    for place in (2, 0, 1):
        engine.end(handles[place])
        assert ended.get(timeout=SETTLE_TIMEOUT) == ("abc"[place], None)


def test_the_second_operation_begins_when_the_first_is_done(engine, ended):
    first, second = engine.handle("first"), engine.handle("second")
    start(CompletionThread(), ended, "both", [first, second])
    assert engine.begun == ["first"]
    engine.end(first)
    engine.end(second)
    assert ended.get(timeout=SETTLE_TIMEOUT) == ("both", None)
    assert engine.begun == ["first", "second"]


def test_after_one_that_fails_no_other_begins(engine, ended):
    first, second = engine.handle("first"), engine.handle("second")
    start(CompletionThread(), ended, "both", [first, second])
    engine.end(first, MismatchError("the ranks disagree"))
    _, error = ended.get(timeout=SETTLE_TIMEOUT)
    assert isinstance(error, MismatchError)
    assert engine.begun == ["first"]


def test_one_that_cannot_begin_fails_at_once_and_the_others_go_on(engine, ended):
    thread = CompletionThread()
    other = engine.handle("other")
    start(thread, ended, "other", [other])
    start(thread, ended, "taken", [engine.handle("taken")])
    assert isinstance(ended.get_nowait()[1], UsageError)
    engine.end(other)
    assert ended.get(timeout=SETTLE_TIMEOUT) == ("other", None)
