"""Hooks in a backward pass that runs in threads unknown to Python, such as torch's thread of each GPU."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from distrun.errors import UsageError
from distrun.runtime.collectives.call import Call
from distrun.torch.gradients import backward, reducer
from distrun.torch.gradients.bucket import Bucket
from distrun.torch.gradients.planning import Settings
from distrun.torch.gradients.reducer import GradientReducer

pytestmark = pytest.mark.gate


def elsewhere(function: Callable[[], object]) -> object:
    """Call `function` in a thread that Python does not know; return its result or raise its error."""
    done = threading.Event()
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)
        done.set()

    _thread.start_new_thread(run, ())
    assert done.wait(20)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


class Calls(torch.autograd.Function):
    """Calls a function in its backward."""

    @staticmethod
    def forward(ctx, tensor, function):
        ctx.function = function
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.function()
        return gradient, None


def within_backward(function: Callable[[], object]) -> object:
    """Call `function` in a backward pass; return its result."""
    results: list[object] = []
    leaf = torch.ones(1, requires_grad=True)
    with torch.enable_grad():
        loss = Calls.apply(leaf, lambda: results.append(function())).sum()
    loss.backward()
    return results[0]


def test_the_callers_thread_finds_its_own_call():
    outer, inner = within_backward(lambda: (backward.position(), within_backward(backward.position)))
    assert outer.depth == 1
    assert inner.depth == 2
    assert inner.call is outer.call is not None
    assert inner.is_own
    assert backward.position() == (None, 0, True)


def test_a_gpus_thread_finds_the_call_of_the_thread_that_waits_for_it():
    own, other, nested = within_backward(
        lambda: (
            backward.position(),
            elsewhere(backward.position),
            elsewhere(lambda: within_backward(backward.position)),
        )
    )
    assert other.call is nested.call is own.call
    assert (other.depth, nested.depth) == (1, 2)
    assert not other.is_own
    assert not nested.is_own
    # A pass within the pass in the caller's thread: whether the GPU's is in it cannot be told.
    deeper = within_backward(lambda: within_backward(lambda: elsewhere(backward.position)))
    assert deeper.depth == 2
    assert not deeper.is_own
    # Passes beyond a depth of 60 run in a further thread.
    beyond = within_backward(lambda: elsewhere(lambda: within_backward(lambda: elsewhere(backward.position))))
    assert beyond.depth == 2


def test_without_a_caller_there_is_no_call():
    assert elsewhere(backward.position) == (None, 0, False)
    caller = elsewhere(lambda: within_backward(lambda: (backward.position(), elsewhere(backward.position))))
    assert caller[0].is_own  # Python does not know the caller's thread either
    assert caller[1].call is caller[0].call


def test_among_several_callers_the_known_one_is_ours():
    def run() -> None:
        within_backward(lambda: (started.set(), go_on.wait(20)))

    started, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(20)
    try:
        own, other = within_backward(
            lambda: (own := backward.position(), elsewhere(lambda: backward.position(own.call)))
        )
    finally:
        go_on.set()
        thread.join()
    assert other.call is own.call


# The reducer ----------------------------------------------------------------------------------------------------------


class Fake(Bucket):
    """Notes what is done to it."""

    def __init__(self, places, log):
        super().__init__(Call("allreduce"), places, [])
        self.log = log

    def send(self, start):
        self.is_sent = True
        self.log.append(("send", self.places))

    def forfeit(self, start):
        self.is_sent = True
        self.log.append(("forfeit", self.places))

    def receive(self):
        self.log.append(("receive", self.places))

    def drop(self):
        self.log.append(("drop", self.places))


@pytest.fixture
def planned(monkeypatch):
    """A reducer for four parameters in two buckets, whose hooks the test calls itself, in tasks of its own choice."""
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(4)]
    optimizer = torch.optim.SGD(parameters, 0.1)
    log, tasks, ends = [], threading.local(), []
    pair = SimpleNamespace(included=lambda: True, size=lambda: 2)
    made = GradientReducer("test", optimizer, {}, Settings(process_set=pair))
    made._buckets.use([Fake((0, 1), log), Fake((2, 3), log)])
    monkeypatch.setattr(backward, "current_task", lambda: tasks.number)
    monkeypatch.setattr(backward, "at_end_of_task", ends.append)

    def arrive(task: int, *places: int) -> None:
        tasks.number = task
        for place in places:
            made.arrive(id(parameters[place]))

    return SimpleNamespace(optimizer=optimizer, reducer=made, log=log, ends=ends, arrive=arrive)


def test_hooks_of_both_threads_belong_to_one_pass(planned):
    def step():
        planned.arrive(5, 0)
        elsewhere(lambda: planned.arrive(5, 2, 3))
        assert planned.log == [("send", (2, 3))]
        elsewhere(lambda: within_backward(lambda: planned.arrive(6, 1)))  # a checkpoint
        (end,) = planned.ends
        elsewhere(end)

    within_backward(step)
    assert planned.log[1:] == [("send", (0, 1)), ("receive", (0, 1)), ("receive", (2, 3))]
    assert not planned.reducer._pass.is_open
    assert planned.reducer._pass.call is None


def test_hooks_at_the_same_time_lose_nothing(planned):
    def step():
        threads = [
            threading.Thread(target=elsewhere, args=(lambda p=place: planned.arrive(5, p),)) for place in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(planned.log) == [("send", (0, 1)), ("send", (2, 3))]
        planned.ends[0]()

    for _ in range(5):
        within_backward(step)
        planned.log.clear()
        planned.ends.clear()


def test_the_end_is_found_even_if_the_caller_was_in_a_checkpoint(planned):
    def step():
        within_backward(lambda: elsewhere(lambda: planned.arrive(5, 0, 1)))
        (end,) = planned.ends
        within_backward(lambda: elsewhere(end))  # it was the checkpoint's
        assert ("receive", (0, 1)) not in planned.log
        elsewhere(end)

    within_backward(step)
    assert planned.log[-1] == ("receive", (2, 3))


def test_a_hook_that_comes_after_its_pass_has_failed_changes_nothing(planned):
    within_backward(lambda: planned.arrive(7, 0, 1))  # and then fails
    elsewhere(lambda: planned.arrive(7, 2, 3))
    elsewhere(lambda: planned.arrive(6, 2))
    assert ("send", (2, 3)) in planned.log  # of a task that is known: nobody can tell yet
    planned.log.clear()
    planned.reducer.abandon()
    elsewhere(lambda: planned.arrive(7, 2, 3))
    within_backward(lambda: elsewhere(lambda: planned.arrive(6, 2, 3)))
    assert planned.log == [("drop", (0, 1)), ("drop", (2, 3))]
    assert not planned.reducer._pass.is_open
    planned.log.clear()

    def step():
        elsewhere(lambda: planned.arrive(9, 0, 1, 2, 3))
        planned.ends[-1]()

    within_backward(step)
    assert planned.log[:2] == [("send", (0, 1)), ("send", (2, 3))]
    assert planned.log[2:] == [("receive", (0, 1)), ("receive", (2, 3))]


def test_a_pass_that_failed_is_told_from_the_next_one(planned):
    within_backward(lambda: elsewhere(lambda: planned.arrive(7, 0, 1)))
    assert planned.reducer._pass.is_open
    within_backward(lambda: elsewhere(lambda: planned.arrive(8, 2)))
    assert planned.log == [("send", (0, 1)), ("forfeit", (2, 3)), ("drop", (0, 1)), ("drop", (2, 3))]
    with pytest.raises(UsageError, match=r"parameter 0\.2 changed after it was sent"):
        within_backward(lambda: planned.arrive(8, 2))


def test_what_cannot_be_sent_at_the_end_of_a_pass_is_not_waited_for_by_other_ranks(planned):
    first, second = planned.reducer._buckets

    def fail(start):
        raise UsageError("sparse")

    first.send = fail
    with pytest.raises(UsageError, match="sparse"):
        planned.reducer.complete()
    assert planned.log == [("forfeit", (0, 1)), ("forfeit", (2, 3)), ("drop", (0, 1)), ("drop", (2, 3))]
    assert not second.is_sent


def test_a_capture_before_the_parameters_are_compared_is_refused(planned, monkeypatch):
    monkeypatch.setattr(reducer.cuda, "kind", lambda tensor: "cuda")
    monkeypatch.setattr(reducer.cuda, "is_capturing", lambda: True)
    planned.reducer._buckets.forget()
    with pytest.raises(UsageError, match="run some whole steps"):
        planned.reducer.complete()
