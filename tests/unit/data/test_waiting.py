"""When to say that training waits for its input: histories of times, and what was said at them."""

import pytest

from distrun.data.waiting import Judge, Stopwatch, is_due


def said(judge, history):
    """Return the messages of an epoch; `history` holds the milliseconds waited and worked of each step."""
    stopwatch, now, messages = Stopwatch(judge), 100.0, []
    for waited, worked in history:
        messages.append(stopwatch.asks(now))
        now += waited / 1e3
        stopwatch.gets(now)
        now += worked / 1e3
    messages.append(stopwatch.asks(now))
    return [message for message in messages if message]


HISTORIES = {
    "no_waiting": ([(0, 30)] * 100, []),
    "a_little": ([(5, 25)] * 100, []),
    "too_long": ([(12, 24)] * 100, ["33% of its time for input (12.0 of 36.0 ms per step over 20 steps; limit 20%)"]),
    "only_later": (
        [(0, 10)] * 21 + [(10, 10)] * 80,
        ["50% of its time for input (10.0 of 20.0 ms per step over 20 steps"],
    ),
    "a_slow_start": ([(5000, 0)] + [(0, 10)] * 99, []),
    "a_first_step_that_compiles": ([(0, 90_000)] + [(10, 10)] * 99, ["50% of its time"]),
    "too_few_steps": ([(10, 10)] * 20, []),
    "trifles": ([(0.05, 0.05)] * 100, []),
    "one_pause": ([(0, 10)] * 30 + [(40, 10)] + [(0, 10)] * 69, []),
}


@pytest.mark.parametrize(("history", "expected"), HISTORIES.values(), ids=HISTORIES)
def test_a_history_gets_its_warning(history, expected):
    messages = said(Judge(rank=1, limit=0.2), history)
    assert len(messages) == len(expected), messages
    for message, part in zip(messages, expected, strict=True):
        assert message.startswith(f"rank 1 waited {part}")


def test_each_epoch_may_have_its_own_warning():
    judge = Judge(0, 0.2)
    assert [len(said(judge, [(10, 10)] * 50)) for _ in range(3)] == [1, 1, 1]
    assert said(judge, [(0, 10)] * 50) == []


def test_looks_become_rarer():
    assert [steps for steps in range(-1, 500) if is_due(steps)] == [20, 40, 80, 160, 320]
