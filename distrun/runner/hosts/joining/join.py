"""A host that joins: it finds the launcher, which may start later, and runs its agents until the job is over."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from functools import partial

from distrun.errors import BootstrapError, LaunchError
from distrun.host.endpoints import format_endpoint
from distrun.runner.hosts.joining.client import Accepted, OccupiedError, connect
from distrun.runner.hosts.joining.endpoint import JoinEndpoint
from distrun.runner.hosts.joining.messages import MAY_BE_TRIED_AGAIN, End, Member
from distrun.runner.hosts.joining.relay import Interruption, Relay
from distrun.runner.hosts.program import AGENT, LocalProgram
from distrun.runner.system import descendants

_RESOLVE_AGAIN = 5.0  # seconds until the launcher's name is resolved again, as it may have moved
_NOTICE_INTERVAL = 30.0  # seconds from one notice of what is waited for to the next
_RETRY = 1.0  # seconds after which this host calls again while another process has its index


class UnreachableError(LaunchError):
    """The launcher was not found in time."""

    status = MAY_BE_TRIED_AGAIN


class Joiner:
    """One host that joins a job."""

    def __init__(
        self, endpoint: JoinEndpoint, member: Member, interruption: Interruption, notify_user: Callable[[str], None]
    ) -> None:
        self._endpoint = endpoint
        self._member = member
        self._interruption = interruption
        self._notify_user = notify_user
        self._where = format_endpoint(*endpoint.address)
        self._noticed_at = float("-inf")
        self._children = descendants.children()

    def run(self) -> End:
        """Join, and stay until the job is over. Returns how it ended.

        Raises:
            LaunchError: the launcher was not found in time, or does not take this host.
        """
        while True:
            agent = LocalProgram(AGENT)  # it imports what it needs while the launcher is looked for
            accepted = None
            try:
                accepted = self._find()
            finally:
                if accepted is None:
                    agent.kill()
                    agent.wait()
                    agent.close()
            if accepted is None:
                return self._interrupted()
            clean_up = partial(self._clean_up, accepted)
            relay = Relay(accepted.connection, agent, self._interruption, accepted.keepalive, clean_up)
            relay.run()
            if relay.end is not None:
                return relay.end
            if self._interruption.signum:
                return self._interrupted()
            self._notify_user(f"the connection with the launcher at {self._where} is gone: {relay.lost}")
            if not self._endpoint.rejoins:
                return End(MAY_BE_TRIED_AGAIN)
            self._noticed_at = time.monotonic()

    def _interrupted(self) -> End:
        return End(128 + self._interruption.signum, told_to_end=self._interruption.signum)

    def _find(self) -> Accepted | None:
        """Call the launcher until it accepts this host. None = a signal ends this process."""
        deadline = time.monotonic() + self._endpoint.timeout
        while not self._interruption.signum:
            attempt_end = min(deadline, time.monotonic() + _RESOLVE_AGAIN)
            try:
                return connect(self._endpoint, self._member, attempt_end, [self._interruption.fileno()])
            except OccupiedError as error:
                reason = str(error)
                self._await_interruption(_RETRY)
            except BootstrapError as error:
                reason = str(error)
            now = time.monotonic()
            if now >= deadline:
                raise UnreachableError(
                    f"the launcher at {self._where} was not reached within {self._endpoint.timeout:g} s: {reason}; see "
                    f"that host 0 runs, and that {self._endpoint.key_name} is the same on all hosts"
                )
            if now >= self._noticed_at + _NOTICE_INTERVAL and not self._interruption.signum:
                self._noticed_at = now
                self._notify_user(f"waiting for the launcher at {self._where}: {reason}")
        return None

    def _await_interruption(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._interruption.fileno(), select.POLLIN)
        poll.poll(seconds * 1000)

    def _clean_up(self, accepted: Accepted) -> bool:
        """End what a dead agent has left behind, which this process has adopted. Returns whether nothing is left."""
        is_clean = descendants.end_all(marker=f"DISTRUN_JOB={accepted.job}", spare=self._children)
        from distrun.runner.system import scratch

        scratch.remove_all({**os.environ, "DISTRUN_JOB": accepted.job, "DISTRUN_HOSTNAME": accepted.host})
        return is_clean


def join(endpoint: JoinEndpoint, member: Member, notify_user: Callable[[str], None]) -> End:
    """Join a job as one of its hosts, and stay until it is over.

    Args:
        endpoint: where the launcher listens.
        member: how this host introduces itself.
        notify_user: shows a sentence to the user: what is waited for, and why.

    Returns:
        The end of the job. Its status is 128 plus the signal that ended this process, or 143 if the launcher vanished.

    Raises:
        LaunchError: the launcher was not found in time, or does not take this host.
    """
    interruption = Interruption()
    descendants.set_subreaper()
    try:
        with interruption.listening():
            return Joiner(endpoint, member, interruption, notify_user).run()
    finally:
        descendants.set_subreaper(False)
        interruption.close()
