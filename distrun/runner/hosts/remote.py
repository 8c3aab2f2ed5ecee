"""The agent of another host, however it is reached: its handshake, its timeout, and the sweep after its death."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from distrun.host.endpoints import PORTS
from distrun.runner.hosts.agent_client import UnresponsiveError
from distrun.runner.hosts.introduction import introduce
from distrun.runner.hosts.program import SWEEP, Program
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.protocol.handshake import Greeting, HostError, HostInfo, check_compatibility
from distrun.runner.protocol.keepalive import PER_TIMEOUT
from distrun.runner.shipping.delivery import Delivery

if TYPE_CHECKING:
    from distrun.runner.protocol.sealed_frames import SealOffer

_MARGIN = 0.5  # seconds for ending processes by SIGKILL, and for clocks


@dataclass(frozen=True)
class AgentTerms:
    """The facts that are the same for all agents of a launch."""

    job: str
    """The job's name. The sweep finds by it what an agent leaves behind."""
    keepalive: float
    """Seconds without a frame after which an agent counts as gone, 0 = never."""
    deadline: float
    """When to give up starting, as `time.monotonic()`."""
    delivery: Delivery = field(default_factory=Delivery)
    """The things that a host gets if it lacks them."""
    offer: SealOffer | None = None
    """How to encrypt frames for agents, where others may read them. None = not at all."""


class RemoteAgent(ABC):
    """An agent on another host. See `distrun.runner.hosts.agent_client.AgentProcess` for the interface."""

    def __init__(
        self,
        plan: AgentPlan,
        terms: AgentTerms,
        program: Program,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        """Run the handshake with an agent that has just been started.

        Args:
            plan: its part of the plan. The agent gets it later.
            terms: what it has in common with other agents.
            program: the agent.
            on_step: is called with what happens on the host.

        Raises:
            HostError: the host cannot be used.
        """
        keepalive, offer = terms.keepalive, terms.offer
        self.keepalive: float | None = keepalive or None
        # If the job continues without the agent, the agent must have ended its ranks before this side gives it up.
        # The last frame that it received may be younger, by an interval, than the last that this side received.
        self._is_outlived = plan.room > 0 or plan.is_outlived
        margin = keepalive / PER_TIMEOUT + _MARGIN if self._is_outlived else 0.0
        self._timeout = keepalive + margin if keepalive else None
        self._host = plan.host
        self._job = terms.job
        self._program = program
        self._has_timed_out = False
        self._is_paused = False
        self._resumed_at = 0.0
        self._sweeper: threading.Thread | None = None
        self._is_clean = False
        greeting = Greeting(keepalive, plan.wdir, plan.ports, os.environ.get(PORTS, ""), servers=plan.server_ports)
        if offer is not None:
            greeting = replace(greeting, sealing=offer.public, credential=offer.credential)
        hello = Frame(FrameKind.HELLO, payload=greeting.to_json()).encode()
        self._introduction = introduce(program, terms.delivery, hello, terms.deadline, on_step)
        self._early = self._introduction.early
        self.host_info = HostInfo.from_json(self._introduction.payload)
        remark = check_compatibility(self.host_info, program.python)
        self.note = "; it ".join(filter(None, (self._introduction.note, remark)))
        self._seal = None if offer is None else offer.accepted(self.host_info)

    @property
    def pid(self) -> int:
        """The agent's process id on its host."""
        return self.host_info.pid

    def write(self, data: bytes) -> None:
        """Send frames to the agent."""
        if self._seal is not None:
            data = Frame(FrameKind.SEALED, payload=self._seal.seal(data)).encode()
        self._program.write(data)

    def read(self) -> bytes:
        """Return the next bytes of its frames, none at their end.

        Raises:
            LaunchError: it has sent nothing for too long.
        """
        early, self._early = self._early, b""
        while True:
            try:
                return early or self._program.read(self._timeout)
            except TimeoutError:
                assert self._timeout is not None
                # Time passes while this process is stopped, and the agent sends no KEEPALIVE frames then.
                if self._is_paused or time.monotonic() < self._resumed_at + self._timeout:
                    continue
                self._has_timed_out = True
                raise UnresponsiveError(
                    f"nothing was heard from {self._host} for {self._timeout:g} s: the host or the network to it is "
                    "gone"
                ) from None

    def pause_keepalive(self) -> None:
        """Stop the timeout, because this process is about to be stopped."""
        self._is_paused = True

    def resume_keepalive(self) -> None:
        """Restart the timeout."""
        self._resumed_at = time.monotonic()
        self._is_paused = False

    @abstractmethod
    def end_of_life(self) -> tuple[str, int]:
        """Wait for the agent's end. Return how it ended, in words, and the exit status of a job that ends for it."""

    def kill(self) -> None:
        """End the agent at once. If it ignores that, `clean_up` ends it."""
        self._program.kill()

    def clean_up(self, pids: set[int]) -> None:
        """Start a program on its host that ends the agent, if it is alive, and the descendants that are left."""
        self._sweeper = threading.Thread(target=self._sweep, name=f"distrun sweep {self._host}", daemon=True)
        self._sweeper.start()  # not waited for: many hosts may be lost at once, and this thread decides what to do

    def is_clean(self) -> bool:
        """Wait for the end of the sweep and return whether it has left nothing."""
        if self._sweeper is not None:
            self._sweeper.join()
        return self._is_clean

    def close(self) -> None:
        """Wait for the end of the sweep, and close the streams."""
        if self._sweeper is not None:
            self._sweeper.join()
        self._program.close()

    def _sweep(self) -> None:
        with suppress(OSError, HostError):  # out of reach: the agent notices that too, and ends its ranks
            sweep = self._run(SWEEP)
            try:
                host = f" {self._host}" if self._is_outlived else ""
                sweep.write(f"{self._job} {self.pid}{host}\n".encode())
                sweep.end_input()
                while sweep.read(self._sweep_timeout()):  # a login shell may print something
                    pass
                self._is_clean = sweep.wait() == 0
            finally:
                sweep.kill()

    @abstractmethod
    def _run(self, module: str) -> Program:
        """Run another module of distrun on the agent's host. Raises HostError."""

    @abstractmethod
    def _sweep_timeout(self) -> float:
        """Return the seconds that a sweep may take."""
