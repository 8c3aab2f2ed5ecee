"""The launcher's end of an agent whose host has joined, and the starter of such agents."""

from __future__ import annotations

import time
from collections.abc import Callable

from distrun.runner.hosts.agent_client import UnresponsiveError
from distrun.runner.hosts.joining.channel import EXIT_TIMEOUT, Channel
from distrun.runner.hosts.joining.listener import JoinListener
from distrun.runner.hosts.joining.messages import MAY_BE_TRIED_AGAIN, LostError
from distrun.runner.hosts.program import Program
from distrun.runner.hosts.remote import AgentTerms, RemoteAgent
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.protocol.exits import signal_name
from distrun.runner.protocol.handshake import HostError

_SHORT_EXIT_TIMEOUT = 0.5  # seconds for the host of an agent that has timed out to report the agent's end


class JoinedAgent(RemoteAgent):
    """An agent whose host has joined. See `distrun.runner.hosts.agent_client.AgentProcess` for the interface."""

    def __init__(self, plan: AgentPlan, terms: AgentTerms, channel: Channel, release: Callable[[bool], None]) -> None:
        """Run the handshake with the agent.

        Args:
            plan, terms: as for `RemoteAgent`.
            channel: the channel to the agent.
            release: is called when the agent is not used any longer, with whether its host can start another.

        Raises:
            HostError: the host cannot be used.
        """
        self._channel = channel
        self._release = release
        channel.connection.set_keepalive(terms.keepalive, may_be_unread=True)
        try:
            super().__init__(plan, terms, channel)
        except HostError as error:
            self._give_up()
            if channel.is_gone:
                raise LostError(str(error)) from None
            raise
        except BaseException:
            self._give_up()
            raise

    def read(self) -> bytes:
        """Return the next bytes of its frames, none at their end. See `RemoteAgent.read`."""
        try:
            return super().read()
        except UnresponsiveError as error:
            error.status = MAY_BE_TRIED_AGAIN
            raise

    def end_of_life(self) -> tuple[str, int]:
        """Wait for the agent's end."""
        end = self._channel.await_end(_SHORT_EXIT_TIMEOUT if self._has_timed_out else EXIT_TIMEOUT)
        if end is None:
            return f"(pid {self.pid}) is out of reach: the connection with its host is gone", MAY_BE_TRIED_AGAIN
        if end.told_to_end:
            name = signal_name(end.told_to_end)
            return f"(pid {self.pid}) was told to end: its host's process received {name}", 128 + end.told_to_end
        if end.returncode < 0:
            return f"(pid {self.pid}) was killed by {signal_name(-end.returncode)}", 128 - end.returncode
        if not end.returncode and self.keepalive:
            how = f"has ended, as it had heard nothing from the launcher for {self.keepalive:g} s"
            return f"(pid {self.pid}) {how}", MAY_BE_TRIED_AGAIN
        return f"(pid {self.pid}) ended unexpectedly with exit code {end.returncode}", end.returncode or 1

    def clean_up(self, pids: set[int]) -> None:
        """Do nothing: the process that has joined ends what its agent leaves, before it reports the agent's end."""

    def is_clean(self) -> bool:
        """Return whether that process has reported that nothing is left."""
        return self._channel.end is not None and self._channel.end.is_clean

    def close(self) -> None:
        """Release the host."""
        super().close()
        end = self._channel.end
        self._release(end is not None and not end.told_to_end and not self._has_timed_out)

    def _give_up(self) -> None:
        self._channel.kill()
        self._release(False)

    def _run(self, module: str) -> Program:
        raise HostError("nobody can log in to its host")

    def _sweep_timeout(self) -> float:
        return 0.0


class JoinedStarter:
    """Starts agents on hosts that have joined. See `distrun.runner.hosts.connector.Starter` for the interface."""

    def __init__(self, join_listener: JoinListener, start_timeout: float) -> None:
        """`start_timeout` is the seconds for a host that an elastic job uses again to call again."""
        self._join_listener = join_listener
        self._start_timeout = start_timeout

    def start(self, plan: AgentPlan, on_step: Callable[[str], None]) -> tuple[JoinedAgent, str]:
        """Run the handshake with the agent of a host, which runs already."""
        deadline = time.monotonic() + self._start_timeout
        on_step("waiting for it to call")
        index, connection, member = self._join_listener.take(plan.host, deadline)
        channel = Channel(connection, member.python)

        def release(can_start_again: bool) -> None:
            self._join_listener.release(index, connection, can_start_again)

        terms = AgentTerms(self._join_listener.job, self._join_listener.keepalive, deadline)
        agent = JoinedAgent(plan, terms, channel, release)
        return agent, agent.note

    def close(self) -> None:
        """Do nothing: the join listener is used until the job is over."""
