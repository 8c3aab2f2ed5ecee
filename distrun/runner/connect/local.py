"""The agent of this host: a child process in a session of its own, so that Ctrl-C on the terminal reaches only us."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from distrun.errors import LaunchError
from distrun.host.endpoints import reserve_port
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.protocol import handshake as hello
from distrun.runner.protocol.exits import signal_name
from distrun.runner.protocol.handshake import Answer, Greeting
from distrun.runner.system import descendants

_PACKAGE_ROOT = Path(__file__).resolve().parents[3]
_CLEAN_UP_PATIENCE = 5.0  # seconds of SIGKILL until we stop trying
_CLEAN_UP_INTERVAL = 0.02


class LocalAgentProcess:
    """An agent on this host; see `distrun.runner.connect.agent_client.AgentProcess` for the interface."""

    keepalive: float | None = None

    def __init__(self, plan: AgentPlan, marker: str | None) -> None:
        """Start it.

        Args:
            plan: its part of the plan. It is not handed over here; the agent reads it from its stdin.
            marker: `NAME=VALUE` that our descendants have in their environment, for a process that has other children
                too; None when all children but those there are already are ours.

        Raises:
            LaunchError: this Python cannot be started.
        """
        self._greeting = Greeting(0.0, plan.wdir, plan.ports)
        self._keeper: socket.socket | None = None
        self._spare = set() if marker else _children()
        self._marker = marker
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "distrun.runner.agent"],
                # `-m` puts this directory first on sys.path: distrun is found however it was found here, and a
                # select.py in the user's directory is not. The ranks' directory is in the plan.
                cwd=_PACKAGE_ROOT,
                env={name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"the agent on {plan.host} cannot be started: {error}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._commands = self._process.stdin.fileno()
        self._reports = self._process.stdout.fileno()

    @functools.cached_property
    def answer(self) -> Answer:
        """What there is to say of this host; the port for the rendezvous is kept by this process."""
        self._keeper = reserve_port()
        return replace(hello.answer(self._greeting, self._keeper), pid=self.pid)

    @property
    def pid(self) -> int:
        """The agent's process id."""
        return self._process.pid

    def read(self) -> bytes:
        """The next bytes of its frames."""
        return os.read(self._reports, 1 << 20)

    def write(self, data: bytes) -> None:
        """Write it all to its stdin."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._commands, rest) :]

    def end_of_life(self) -> tuple[str, int]:
        """Wait for the agent's end."""
        code = self._process.wait()
        if code < 0:
            return f"(pid {self.pid}) was killed by {signal_name(-code)}", 128 - code
        return f"(pid {self.pid}) left without a farewell, with exit code {code}", code or 1

    def kill(self) -> None:
        """SIGKILL the agent; the kernel does the same to its ranks."""
        self._process.kill()

    def clean_up(self, pids: set[int]) -> None:
        """End the dead agent's descendants, which this process has adopted as their subreaper."""
        give_up = time.monotonic() + _CLEAN_UP_PATIENCE
        while time.monotonic() < give_up:
            meant = descendants.signal_all(signal.SIGKILL, spare=self._spare, marker=self._marker)
            # One that is just exiting shows no environment any more, so it is not meant, and cannot be collected yet.
            exiting = [pid for pid in {*meant, *pids} if descendants.reap(pid) == (0, 0)]
            if not meant and not exiting:
                return
            time.sleep(_CLEAN_UP_INTERVAL)  # SIGKILL is under way, and no event tells when adopted orphans are gone

    def close(self) -> None:
        """Close the pipes, and let go of the port."""
        if self._keeper is not None:
            self._keeper.close()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _children() -> set[int]:
    """The children this process was born with: `exec distrun` in a shell inherits the shell's."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return set()
    return {int(pid) for pid in text.split()}
