"""Sending agents the frames about the processes of trials and spares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from distrun.contract.elastic.messages import Activate, Message, Preload, encode_pieces
from distrun.runner.job.agents import Agents
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.tools.sweep.plan import SweepPlan
from distrun.tools.sweep.policy.trials import Trial


class Processes:
    """Starts, messages, ends and releases processes. Only the thread that decides may call it."""

    def __init__(self, agents: Agents, plan: SweepPlan) -> None:
        """Args: the agents of the sweep, which may come and go, and its plan."""
        self._agents = agents
        self._plan = plan
        self._hosts: dict[int, str] = {}

    def start(self, trial: Trial, command: Sequence[str]) -> None:
        """Start or activate the ranks of a trial that has begun."""
        for member, plan in zip(trial.members, self._plan.planner.trial(trial, command), strict=True):
            self._hosts[member.process] = member.host
            if not member.was_spare:
                self._send(Frame(FrameKind.START, member.process, plan.to_json()))
                continue
            parts = self._plan.split(command)
            assert parts is not None  # spares run only Python programs
            self.tell((member.process,), Activate(plan.environ, list(parts.program)))

    def start_spares(self, hosts: Mapping[int, str]) -> None:
        """Start spares, given the host of each by process number."""
        for process, host in hosts.items():
            self._hosts[process] = host
            self._send(Frame(FrameKind.START, process, self._plan.planner.spare(process, {}).to_json()))
            self.tell((process,), Preload(list(self._plan.modules)))

    def tell(self, processes: Iterable[int], message: Message) -> None:
        """Send a message to processes on their control channels."""
        pieces = encode_pieces(message)
        for process in processes:
            for piece in pieces:
                self._send(Frame(FrameKind.CONTROL, process, piece))

    def end(self, processes: Iterable[int], grace: float) -> None:
        """End processes, by SIGKILL after `grace` seconds."""
        for process in processes:
            self._send(Frame.number(FrameKind.END, grace, process))

    def release(self, processes: Iterable[int]) -> None:
        """End what exited processes have left running, and forget them."""
        for process in processes:
            self._send(Frame(FrameKind.RELEASE, process))
            self._hosts.pop(process, None)

    def _send(self, frame: Frame) -> None:
        """Send a frame to the agent of the frame's process, if there is one."""
        if (agent := self._agents.get(self._hosts.get(frame.process, ""))) is not None:
            agent.send(frame)
