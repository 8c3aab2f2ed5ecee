"""The agent of another node of the Slurm allocation, in a job step."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from distrun.runner.hosts.job_steps import JobStep, JobSteps
from distrun.runner.hosts.program import AGENT
from distrun.runner.hosts.remote import AgentTerms, RemoteAgent
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.planning.ssh_config import SshOptions
from distrun.runner.protocol.exits import signal_name
from distrun.runner.protocol.handshake import HostError
from distrun.runner.protocol.sealed_frames import SealOffer
from distrun.runner.shipping.delivery import Delivery

_SWEEP_TIMEOUT = 10.0  # seconds for starting a second step and ending what a dead agent left behind
_SHORT_SWEEP_TIMEOUT = 4.0  # the same if the agent has timed out: it may be stopped, but likely the node is cut off


class SrunAgentProcess(RemoteAgent):
    """An agent on another node. See `distrun.runner.hosts.agent_client.AgentProcess` for the interface."""

    def __init__(
        self,
        plan: AgentPlan,
        terms: AgentTerms,
        steps: JobSteps,
        python: str,
        on_step: Callable[[str], None],
    ) -> None:
        """Start the agent by `steps` and the node's `python`, and run the handshake with it. See `RemoteAgent`."""
        self._steps = steps
        self._python = python
        self._step = steps.start(plan.host, python, AGENT, terms.delivery.opening(terms.job))
        try:
            super().__init__(plan, terms, self._step, on_step)
        except HostError as error:
            self._step.kill()
            raise self._step.refused(str(error)) from None
        except BaseException:
            self._step.kill()
            raise

    def end_of_life(self) -> tuple[str, int]:
        """Wait for the agent's end."""
        status, said = self._step.wait(), self._step.slurm_error()
        words = f": {said}" if said else ""
        if "CANCELLED" in said or said.startswith("Node failure"):  # by scancel, at the time limit, with its node
            return f"(pid {self.pid}) was ended by Slurm{words}", 143
        if status < 0:
            return f"(pid {self.pid}) is out of reach: its srun was killed by {signal_name(-status)}", 128 - status
        if status > 128:
            return f"(pid {self.pid}) was killed by {signal_name(status - 128)}{words}", status
        return f"(pid {self.pid}) ended unexpectedly with exit code {status}{words}", status or 1

    def _run(self, module: str) -> JobStep:
        python = self._introduction.python or self._python
        return self._steps.start(self._host, python, module, self._introduction.opening)

    def _sweep_timeout(self) -> float:
        return _SHORT_SWEEP_TIMEOUT if self._has_timed_out else _SWEEP_TIMEOUT


class SrunStarter:
    """Starts agents by srun. See `distrun.runner.hosts.connector.Starter` for the interface."""

    def __init__(self, job: str, options: SshOptions, start_timeout: float, delivery: Delivery) -> None:
        """As for `SshStarter`. Slurm's job is the one in the environment."""
        self._steps = JobSteps(os.environ)
        self._python = os.path.expanduser(options.python or sys.executable)
        offer = SealOffer()  # srun's streams are not encrypted
        self._terms = AgentTerms(job, options.keepalive, time.monotonic() + start_timeout, delivery, offer)

    def start(self, plan: AgentPlan, on_step: Callable[[str], None]) -> tuple[SrunAgentProcess, str]:
        """Start the agent of a node."""
        on_step(f"starting {self._python} by srun")
        process = SrunAgentProcess(plan, self._terms, self._steps, self._python, on_step)
        return process, process.note

    def close(self) -> None:
        """End the steps that are left, for instance on nodes that did not answer in time."""
        self._steps.close()
