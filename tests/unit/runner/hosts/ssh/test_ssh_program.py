"""Programs behind SSH that have ended before they are sent anything, which is a matter of chance on a real host."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from distrun.runner.hosts.ssh.ssh_program import SshProgram
from distrun.runner.protocol.handshake import HostError
from distrun.runner.shipping.delivery import Opening


class Channel:
    """A channel that fails when something is sent."""

    exit_status = 127

    def __init__(self, error: OSError, closed: bool) -> None:
        self._error = error
        self.closed = closed
        self.status_event = threading.Event()
        self.status_event.set()
        self._said = [b"bash: line 1: /opt/python: No such file or directory\n"]

    def settimeout(self, timeout: float | None) -> None:
        pass

    def exec_command(self, command: str) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        raise self._error

    def recv(self, size: int) -> bytes:
        return b""

    def recv_stderr_ready(self) -> bool:
        return bool(self._said)

    def recv_stderr(self, size: int) -> bytes:
        return self._said.pop()


def start(channel: Channel) -> SshProgram:
    transport: Any = SimpleNamespace(open_session=lambda timeout: channel, is_active=lambda: True)
    return SshProgram(transport, "/opt/python", "distrun.runner.agent", 1.0, Opening("code", b"text"))


def test_a_program_that_has_ended_already_is_explained_by_what_it_wrote():
    program = start(Channel(OSError("Socket is closed"), closed=True))
    assert program.read(1.0) == b""
    assert "/opt/python: No such file or directory" in program.explain_start(b"")


@pytest.mark.parametrize("error", [TimeoutError("timed out"), OSError("broken")])
def test_a_host_that_takes_nothing_is_refused(error):
    with pytest.raises(HostError, match=r"no program can be started there: (timed out|broken)"):
        start(Channel(error, closed=isinstance(error, TimeoutError)))
