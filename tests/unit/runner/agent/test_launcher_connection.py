"""The agent's end of the connection to its launcher."""

import os

import pytest

from distrun.runner.agent.launcher_connection import LauncherConnection
from distrun.runner.protocol import keepalive
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.system.loop import Loop

TIMEOUT = 10.0  # seconds


@pytest.fixture
def pipes():
    made = [*os.pipe(), *os.pipe()]
    yield made
    for descriptor in made:
        os.close(descriptor)


@pytest.mark.parametrize("spoke", [True, False])
def test_a_launcher_that_spoke_while_the_agent_was_stopped_is_not_given_up(pipes, monkeypatch, spoke):
    now = 100.0
    monkeypatch.setattr(keepalive.time, "monotonic", lambda: now)
    commands, launcher, _, reports = pipes
    loop, handled, losses = Loop(), [], []
    connection = LauncherConnection(loop, commands, reports, handled.append, lambda: losses.append(now))
    connection.keep_alive(TIMEOUT)
    if spoke:
        os.write(launcher, Frame(FrameKind.KEEPALIVE).encode())
    now += 2 * TIMEOUT
    connection.stay_in_touch()
    assert connection.is_lost == connection.is_silent == (not spoke)
    if spoke:
        loop.run_once(0)
        connection.stay_in_touch()
        now += TIMEOUT - 0.1
        connection.stay_in_touch()
        assert [frame.kind for frame in handled] == [FrameKind.KEEPALIVE]
        assert not losses
        now += 0.1
        connection.stay_in_touch()
    assert losses == [now]
    loop.close()
