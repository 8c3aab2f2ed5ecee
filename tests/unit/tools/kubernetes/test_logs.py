"""The log of a pod, read by a thread."""

from __future__ import annotations

import threading

from distrun.tools.kubernetes.logs import PodLog

TIMEOUT = 60.0  # seconds


class EndlessPod:
    """As much of a client as is used: a pod that writes for ever."""

    def __init__(self) -> None:
        self.has_written = threading.Event()

    def pod(self, name):
        return {"status": {"phase": "Running"}}

    def log(self, name):
        while True:
            yield b"2026-01-01T00:00:00.000000000Z\n"
            self.has_written.set()


def test_a_log_that_is_stopped_has_no_thread_any_more():
    pod = EndlessPod()
    log = PodLog(pod, "pod", lambda sentence: None)
    log.start()
    assert pod.has_written.wait(TIMEOUT)
    log.stop(TIMEOUT)
    assert not log.is_alive()
