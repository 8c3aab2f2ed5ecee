"""What all ways to start an agent on another host have in common: the program it runs, its first words, how it is heard."""

from __future__ import annotations

import sysconfig
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from distrun.errors import LaunchError
from distrun.runner.protocol.frames import Frame, Kind
from distrun.runner.protocol.handshake import Answer, Greeting, HostError, extract

_PACKAGE_ROOT = Path(__file__).resolve().parents[3]


def program(module: str) -> str:
    """The Python that runs `main` of a module of ours on another host, for `python -c`.

    A distrun that is imported from a checkout here is looked for in the same place there, and an installed one in what
    that Python has installed. The current directory is not searched for modules.
    """
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    first = [] if str(_PACKAGE_ROOT) in installed else [str(_PACKAGE_ROOT)]
    return (
        "import sys; sys.version_info < (3, 10) and sys.exit('distrun needs Python 3.10 or newer, and this is '"
        f" + sys.version.split()[0]); sys.path = {first!r} + [p for p in sys.path if p]; "
        f"from {module} import main; main()"
    )


def greet(
    greeting: Greeting,
    deadline: float,
    send: Callable[[bytes], None],
    receive: Callable[[float], bytes],
    stillborn: Callable[[bytes], str],
) -> tuple[Answer, bytes]:
    """Say hello to an agent that is being started.

    Args:
        greeting: what to say.
        deadline: when to give up, as `time.monotonic()`.
        send: writes to the agent.
        receive: what has come from it after at most so many seconds, none at its end; raises TimeoutError.
        stillborn: why it ended without an answer, from what it wrote.

    Returns:
        The answer, and what has come after it.

    Raises:
        HostError: there is no answer.
    """
    send(Frame(Kind.HELLO, payload=greeting.to_json()).encode())
    stream = b""
    while (found := extract(stream)) is None:
        try:
            data = receive(max(0.1, deadline - time.monotonic()))
        except TimeoutError:
            said = f"; it wrote {stream[-200:]!r}" if stream else ""
            raise HostError(f"the agent did not answer in time{said}") from None
        if not data:
            raise HostError(stillborn(stream))
        stream += data
    payload, rest = found
    return Answer.from_json(payload), rest


class RemoteAgent(ABC):
    """What agents on other hosts have in common, however they are reached; see `agents.AgentProcess` for the interface."""

    answer: Answer
    _early: bytes
    """What came with the answer."""

    def __init__(self, host: str, job: str, keepalive: float) -> None:
        """Args: its host; the job's name, by which what it leaves behind is found; seconds of silence that it may keep, 0 =
        any."""
        self.keepalive: float | None = keepalive or None
        self._host = host
        self._job = job
        self._silent = False
        self._sweeper: threading.Thread | None = None

    @property
    def pid(self) -> int:
        """The agent's process id on its host."""
        return self.answer.pid

    def read(self) -> bytes:
        """The next bytes of its frames; none at their end.

        Raises:
            LaunchError: it has been silent for too long.
        """
        early, self._early = self._early, b""
        try:
            return early or self._receive(self.keepalive)
        except TimeoutError:
            self._silent = True
            raise LaunchError(
                f"nothing was heard from {self._host} for {self.keepalive:g} s: the host or the network to it is gone"
            ) from None

    @abstractmethod
    def _receive(self, seconds: float | None) -> bytes:
        """What has come from it after at most so many seconds, none at its end; raises TimeoutError."""

    def clean_up(self, pids: set[int]) -> None:
        """End the agent if need be, and what is left of its descendants, by a second program on its host."""
        self._sweeper = threading.Thread(target=self._sweep, name=f"distrun sweep {self._host}", daemon=True)
        self._sweeper.start()  # many hosts may be lost at once, and the decider must not wait for each in turn

    @abstractmethod
    def _sweep(self) -> None:
        """Run that program."""

    def _await_sweep(self) -> None:
        if self._sweeper is not None:
            self._sweeper.join()
