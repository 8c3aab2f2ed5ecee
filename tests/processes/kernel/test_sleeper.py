"""A rank that sleeps is told of the processes that have ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from distrun.runtime.transport.shared_memory.doorbell import Doorbell, Sleeper, new_bell_fd

pytestmark = pytest.mark.gate


@pytest.fixture
def bell():
    fd = new_bell_fd()
    yield Doorbell(fd, memoryview(bytearray(64)).cast("q"), 3)
    os.close(fd)


def test_sleep_tells_once_which_processes_have_ended(bell):
    processes = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    pidfds = {os.pidfd_open(process.pid): rank for rank, process in enumerate(processes, 5)}
    sleeper = Sleeper(bell, pidfds)
    assert sleeper.sleep(0.0) == []
    processes[1].kill()
    assert sleeper.sleep(30.0) == [6]
    assert sleeper.sleep(0.0) == []
    bell.force()
    processes[0].kill()
    processes[0].wait()
    assert sleeper.sleep(30.0) == [5]
    for process in processes:
        process.communicate()
    for pidfd in pidfds:
        os.close(pidfd)
