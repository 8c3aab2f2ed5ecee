"""The decisions about an elastic job, without any effect: events and the time go in, actions come out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from distrun.runner.supervision import events
from distrun.runner.supervision.elastic.options import ElasticOptions
from distrun.runner.supervision.policy import Policy, State

if TYPE_CHECKING:
    from distrun.runner.supervision.policy import Action


class ElasticPolicy(Policy):
    """The state machine of one elastic job, with the interface of any job's.

    What differs for whoever executes its actions:

    - Numbers are of processes, not of ranks, wherever events, actions of any job (`SignalRanks`) and `Failure` have a
      rank. Processes are numbered as they are started; a spare has its number before it has a rank.
    - Nothing is connected to before the first `tick`, which is due at once and asks for it (`ConnectHosts`). Every
      host, this machine too, is then reported as `HostReady` or `HostRefused`.
    - `BeginGeneration` starts the ranks, from the first generation on; there is no `StartRanks`. A process in its
      `start` that is a spare is activated instead, with its firm place.
    - `CleanUpAfter` has a host swept, without blocking; the result is to be posted as `HostCleaned`, always.
    - A host that is to be released leaves with `AgentGone`, as at the end.
    """

    def __init__(
        self, hosts: Mapping[str, int], options: ElasticOptions, grace: float, start_timeout: float, now: float
    ) -> None:
        """
        Args:
            hosts: host -> slots, in the user's order; may be empty if a script lists the hosts.
            options: the limits.
            grace: seconds between SIGTERM and SIGKILL.
            start_timeout: seconds in which a host must be ready, and a process started.
            now: the time, in seconds of one monotonic clock.
        """
        super().__init__({}, grace, start_timeout, now)
        self.state = State.CONNECTING
        self.deadline = now
        self._options = options
        self._listed = dict(hosts)

    @property
    def accepts_hosts(self) -> bool:
        """Whether a host that is ready now is of use; else its agent is to be ended."""
        return self.state not in (State.ENDING, State.FINISHING, State.OVER)

    @property
    def story(self) -> list[str]:
        """One line for each failure so far, the last ones if there are many, for the report of a job that failed."""
        return []

    def name(self, process: int) -> str:
        """Return what to call a process: `rank 1 on h2`, `a newcomer on h2`, `a spare on h2`."""
        raise NotImplementedError

    def handle(self, event: events.Event, now: float) -> list[Action]:
        """Take note of an event; return what is to be done."""
        raise NotImplementedError

    def tick(self, now: float) -> list[Action]:
        """Take note of the time; return what is to be done if the deadline has passed."""
        raise NotImplementedError
