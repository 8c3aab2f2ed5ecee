"""A pidfd tells the state of real processes."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from distrun.runtime.transport.shared_memory.peer_process import condition, ending

pytestmark = pytest.mark.gate

KERNEL = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
needs_endings = pytest.mark.skipif(KERNEL < (6, 15), reason="Linux tells how others' children ended since 6.15")


class Peer:
    """A process that waits until its stdin is closed."""

    def __init__(self, code: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"print('ready', flush=True); input()\n{code}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.pidfd = os.pidfd_open(self.process.pid)
        assert self.process.stdout is not None
        self.process.stdout.readline()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.process.kill()
    peer.process.communicate()
    os.close(peer.pidfd)


def test_only_a_stopped_process_is_stopped(peer):
    assert condition(peer.pidfd) is None
    peer.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, peer.process.pid, os.WSTOPPED)
    assert condition(peer.pidfd) == "stopped by a signal"
    peer.process.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, peer.process.pid, os.WCONTINUED)
    assert condition(peer.pidfd) is None


def test_a_process_that_nobody_has_collected_is_dead_and_of_one_that_is_gone_nothing_is_said(peer):
    peer.process.kill()
    os.waitid(os.P_PID, peer.process.pid, os.WEXITED | os.WNOWAIT)
    assert condition(peer.pidfd) == "dead"
    peer.process.wait()
    assert condition(peer.pidfd) is None


def test_a_descriptor_that_is_no_pidfd_tells_nothing():
    assert condition(0) is None
    assert condition(-1) is None


@needs_endings
@pytest.mark.parametrize(
    ("signum", "name"),
    [(signal.SIGABRT, "SIGABRT"), (signal.SIGRTMIN + 3, f"signal {signal.SIGRTMIN + 3}")],
    ids=["named", "real-time"],
)
def test_a_signal_that_killed_is_told(peer, signum, name):
    peer.process.send_signal(signum)
    peer.process.wait()
    assert ending(peer.pidfd) == f"was killed by {name}"


@needs_endings
@pytest.mark.parametrize("status", [0, 255])
def test_an_exit_status_is_told(status):
    process = subprocess.Popen([sys.executable, "-c", f"input(); raise SystemExit({status})"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(process.pid)
    process.communicate(b"\n")
    assert ending(pidfd) == f"exited with status {status}"
    os.close(pidfd)


def test_it_does_not_wait_long_for_a_parent_that_does_not_collect_its_child(peer):
    peer.process.kill()
    os.waitid(os.P_PID, peer.process.pid, os.WEXITED | os.WNOWAIT)
    started = time.monotonic()
    assert ending(peer.pidfd, timeout=0.05) in ("is gone", "was killed by SIGKILL")
    assert time.monotonic() - started < 30.0  # the process is collected after the test only
