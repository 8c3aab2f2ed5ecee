"""How an agent ends what it has started when it has lost its launcher."""

import os
import signal
import time

import pytest

from distrun.runner.agent.agent import Agent


@pytest.fixture
def agent():
    """An agent that was started and has heard nothing yet."""
    commands, launcher = os.pipe()
    ours, reports = os.pipe()
    made = Agent(commands, reports)
    yield made
    made._loop.close()
    for descriptor in (commands, launcher, ours, reports):
        os.close(descriptor)


@pytest.mark.parametrize(
    ("is_outlived", "is_silent", "first"),
    [
        (True, True, signal.SIGKILL),  # its servers may go on elsewhere, with copies that they must not remove
        (True, False, signal.SIGTERM),
        (False, True, signal.SIGTERM),
    ],
)
def test_servers_that_may_go_on_elsewhere_are_not_asked_to_end(agent, is_outlived, is_silent, first):
    agent._is_outlived = is_outlived
    agent._launcher.is_silent = is_silent
    agent._launcher.lose()
    assert agent._ending.due_signal(time.monotonic()) == first
