"""The signals that are due to what an agent still has to end, as histories of times."""

from signal import SIGKILL, SIGTERM

from distrun.runner.agent.ending import Termination


def test_sigterm_comes_once_and_sigkill_again_and_again_after_the_grace():
    ending = Termination(2.0, now=100.0)
    assert ending.due_signal(100.0) == SIGTERM
    assert ending.due_signal(100.0) is None
    assert ending.seconds_left(100.5) == 1.5
    assert ending.due_signal(101.9) is None
    assert ending.due_signal(102.0) == SIGKILL
    assert ending.due_signal(102.01) is None
    assert ending.due_signal(102.06) == SIGKILL
    # Without grace there is no SIGTERM.
    assert Termination(0.0, now=100.0).due_signal(100.0) == SIGKILL


def test_a_delay_comes_before_sigterm():
    ending = Termination(2.0, now=100.0, delay=0.5)
    assert ending.due_signal(100.0) is None
    assert ending.due_signal(100.5) == SIGTERM
    assert ending.seconds_left(100.5) == 2.0


def test_skipping_the_grace_makes_sigkill_due_at_once():
    ending = Termination(1000.0, now=100.0)
    assert ending.due_signal(100.0) == SIGTERM
    ending.skip_grace(101.0)
    assert ending.seconds_left(101.0) == 0.0
    assert ending.due_signal(101.0) == SIGKILL
    assert ending.is_hopeless(106.1)


def test_after_seconds_of_sigkill_nothing_more_is_due():
    ending = Termination(2.0, now=100.0)
    assert not ending.is_hopeless(107.0)
    assert ending.is_hopeless(107.1)
    assert ending.due_signal(107.1) is None
