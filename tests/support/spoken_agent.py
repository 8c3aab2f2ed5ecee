"""A real agent that a test speaks to in frames, in the launcher's place."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from distrun.runner.planning.plan import AgentPlan, RankPlan
from distrun.runner.protocol.frames import Frame, FrameDecoder, FrameKind
from distrun.runner.system import scratch

DEADLINE = 60.0  # seconds


class SpokenAgent:
    """The launcher's end of an agent."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "distrun.runner.agent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.received: list[Frame] = []
        self._decoder = FrameDecoder()
        self._environ: dict[str, str] = {}  # of the processes of an elastic job

    def start(self, *codes: str, stdin: int | None = None) -> None:
        """Have ranks started that execute this Python."""
        ranks = [RankPlan(rank, rank, 1, 0, 1, {"CODE": code}, rank == stdin) for rank, code in enumerate(codes)]
        command = [sys.executable, "-c", "import os; exec(os.environ['CODE'])"]
        plan = AgentPlan("here", command, os.getcwd(), 5.0, dict(os.environ), ranks)
        self.send(Frame(FrameKind.PLAN, payload=plan.to_json()))

    def start_elastic(self, job: str, command: list[str], bind_to: str = "none") -> None:
        """Hand it the plan of an elastic job, whose processes are started one by one."""
        environ = {**os.environ, "DISTRUN_JOB": job}
        plan = AgentPlan("here", command, os.getcwd(), 5.0, environ, [], bind_to=bind_to, room=2)
        self.send(Frame(FrameKind.PLAN, payload=plan.to_json()))
        self._environ = environ

    def send(self, frame: Frame) -> None:
        self.process.stdin.write(frame.encode())
        self.process.stdin.flush()

    def receive(self, kind: FrameKind) -> Frame:
        """Read on until a frame of this kind comes."""
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, "the agent is gone"
            frames = list(self._decoder.feed(data))
            self.received += frames
            for frame in frames:
                if frame.kind is kind:
                    return frame
        raise AssertionError(f"no {kind!r}")

    def output(self) -> bytes:
        return b"".join(frame.payload for frame in self.received if frame.kind is FrameKind.STDOUT)

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait(DEADLINE)
        self.process.stdin.close()
        self.process.stdout.close()
        scratch.remove_all(self._environ)
