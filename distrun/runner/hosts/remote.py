"""The agent of another host, however it is reached: its handshake, its silence, and the sweep after its death."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
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


class RemoteAgent(ABC):
    """An agent on another host; see `distrun.runner.hosts.agent_client.AgentProcess` for the interface."""

    def __init__(
        self,
        plan: AgentPlan,
        job: str,
        program: Program,
        keepalive: float,
        deadline: float,
        delivery: Delivery | None = None,
        on_step: Callable[[str], None] = lambda step: None,
        offer: SealOffer | None = None,
    ) -> None:
        """Shake hands with an agent that has just been started.

        Args:
            plan: its part of the plan. It is not handed over here.
            job: the job's name, by which the sweep finds what the agent leaves behind.
            program: the agent.
            keepalive: seconds of silence after which it counts as gone, 0 = never.
            deadline: when to give up, as `time.monotonic()`.
            delivery: what the host gets if it lacks it; None = it has been prepared by others, and asks for nothing.
            on_step: is told what is going on there.
            offer: how to seal what the agent is sent, where others may listen; None = they cannot.

        Raises:
            HostError: the host cannot be used.
        """
        self.keepalive: float | None = keepalive or None
        # An agent without which the job goes on must have given us up, and ended its ranks, before we give it up: what
        # it has heard last may be younger by an interval than what we have.
        self._is_outlived = plan.room > 0 or plan.is_outlived
        margin = keepalive / PER_TIMEOUT + _MARGIN if self._is_outlived else 0.0
        self._timeout = keepalive + margin if keepalive else None
        self._host = plan.host
        self._job = job
        self._program = program
        self._silent = False
        self._is_paused = False
        self._resumed_at = 0.0
        self._sweeper: threading.Thread | None = None
        self._is_clean = False
        greeting = Greeting(keepalive, plan.wdir, plan.ports, os.environ.get(PORTS, ""), servers=plan.server_ports)
        if offer is not None:
            greeting = replace(greeting, sealing=offer.public, credential=offer.credential)
        hello = Frame(FrameKind.HELLO, payload=greeting.to_json()).encode()
        self._introduction = introduce(program, delivery or Delivery(), hello, deadline, on_step)
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
            LaunchError: it has been silent for too long.
        """
        early, self._early = self._early, b""
        while True:
            try:
                return early or self._program.read(self._timeout)
            except TimeoutError:
                assert self._timeout is not None
                # While we are stopped time goes by, and the agent has been told that it need not speak.
                if self._is_paused or time.monotonic() < self._resumed_at + self._timeout:
                    continue
                self._silent = True
                raise UnresponsiveError(
                    f"nothing was heard from {self._host} for {self._timeout:g} s: the host or the network to it is "
                    "gone"
                ) from None

    def pause_keepalive(self) -> None:
        """Wait for its words without limit from now on: we are about to be stopped."""
        self._is_paused = True

    def resume_keepalive(self) -> None:
        """Count its silence again, from now."""
        self._resumed_at = time.monotonic()
        self._is_paused = False

    @abstractmethod
    def end_of_life(self) -> tuple[str, int]:
        """Wait for the agent's end; return how it ended in words, and the exit status that stands for it."""

    def kill(self) -> None:
        """End the agent at once; one that ignores that is the business of `clean_up`."""
        self._program.kill()

    def clean_up(self, pids: set[int]) -> None:
        """Begin to end the agent, if need be, and what is left of its descendants, by a second program on its host."""
        self._sweeper = threading.Thread(target=self._sweep, name=f"distrun sweep {self._host}", daemon=True)
        self._sweeper.start()  # many hosts may be lost at once, and the decider must not wait for each in turn

    def is_clean(self) -> bool:
        """Wait for the end of the sweep; return whether it has found nothing more in the end."""
        if self._sweeper is not None:
            self._sweeper.join()
        return self._is_clean

    def close(self) -> None:
        """Close the streams when the sweep is done."""
        if self._sweeper is not None:
            self._sweeper.join()
        self._program.close()

    def _sweep(self) -> None:
        with suppress(OSError, HostError):  # out of reach; the agent notices that it is alone, too
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
        """Run another module of ours on the agent's host. Raises HostError."""

    @abstractmethod
    def _sweep_timeout(self) -> float:
        """Return the seconds that a sweep may take."""
